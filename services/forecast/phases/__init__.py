"""Phases of a training run: warm-up, fast and stable convergence, told while it runs. Definitions: docs/forecasting.md.

``truth`` says with the whole curve at hand where the phases were; ``detector`` says it sample by sample; ``ramps`` reads
the declared ramp of learning rate and batch size; ``demand`` what each phase asks for; ``scoring`` compares.
"""
