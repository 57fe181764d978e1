"""A run as tables of published ones state it, but for its batch and time."""

ROW = {
    "accelerator": "A100-SXM4-80GB",
    "model": "llama2-7b",
    "n_accel": "8",
    "seq": "4096",
    "tp": "1",
    "pp": "1",
    "mbs": "1",
    "precision": "bf16",
    "recompute": "full",
}
