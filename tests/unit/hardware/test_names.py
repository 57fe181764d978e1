"""Names as vendors, tools and benchmark lists write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.hardware import standard


@pytest.mark.parametrize(
    ("name", "chip_id", "count"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb", None),
        ("NVIDIA A100-SXM-80GB CTS", "a100-sxm4-80gb", None),
        ("NVIDIA A100-SXM4-80GB (400W)", "a100-sxm4-80gb", None),
        ("NVIDIA A100 - PCIe - 80 GB", "a100-pcie-80gb", None),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb", None),
        ("NVIDIA H100-SXM-80GB", "h100-sxm5-80gb", None),
        ("NVIDIA H100 PCIe", "h100-pcie", None),
        ("Nvidia Tesla V100-SXM2-32GB", "v100-sxm2-32gb", None),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb", None),
        ("Tesla K80", "k80", None),
        ("NVIDIA GeForce RTX 4090", "rtx-4090", None),
        ("RTX 3090 Ti", "rtx-3090-ti", None),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada", None),
        ("NVIDIA GH200 480GB", "gh200-96gb", None),
        ("NVIDIA H20", "h20", None),
        ("NVIDIA H20-3e", "h20-141gb", None),
        ("NVIDIA GeForce RTX 4090 D", "rtx-4090-d", None),
        ("RTX 4090D", "rtx-4090-d", None),
        ("TPU-v4", "tpu-v4", None),
        ("v6e", "tpu-v6e", None),
        ("DGX-GB300", "gb300", None),
        ("8x DGX-GB300", "gb300", 8),
        ("H100-96G-HBM2e", "h100-sxm5-96gb-hbm2e", None),
        ("H100 SXM5 80GB HBM3", "h100-sxm5-80gb", None),
        ("H100 PCIe 80GB HBM2e", "h100-pcie", None),
        ("A100-PCIE-80GB HBM2e", "a100-pcie-80gb", None),
        ("Tesla P100 12GB", "p100-pcie-12gb", None),
        ("NVIDIA H100-SXM5-96GB", "h100-sxm5-96gb", None),
        ("Intel(R) Gaudi(R) 2 AI Accelerator", "gaudi2", None),
        ("Habana Gaudi HL-205", "gaudi", None),
        ("AMD Instinct MI300X", "mi300x", None),
        ("昇腾 910B3", "ascend-910b3", None),
        ("华为昇腾910C", "ascend-910c", None),
        ("Huawei Ascend 310P3", "ascend-310p", None),
        ("寒武纪 MLU370-X8", "mlu370-x8", None),
        ("寒武纪 思元 590", "mlu590", None),
        ("海光 DCU K100_AI", "dcu-k100-ai", None),
        ("天数智芯 天垓 150", "bi-v150", None),
        ("沐曦 曦云 C500", "metax-c500", None),
        ("摩尔线程 MTT S4000", "mtt-s4000", None),
        ("2x RTX 3090", "rtx-3090", 2),
        ("8 x A100-SXM4-80GB", "a100-sxm4-80gb", 8),
        ("A100-SXM4-80GB x8", "a100-sxm4-80gb", 8),
        ("A10*4", "a10", 4),
        ("1CC 8x H100 80GB SXM5", "h100-sxm5-80gb", 8),
        ("LambdaCloud H100 80GB PCIe Gen5", "h100-pcie", None),
        ("LambdaOD_8x_Texas_2xH100_80GB_SXM5_192-222-52-149_v2", "h100-sxm5-80gb", 2),
        ("LambdaOD_1x_Texas_1xH100_80GB_PCIe_209-20-158-50_v2", "h100-pcie", 1),
    ],
)
def test_a_name_stands_for_one_chip(name: str, chip_id: str, count: int | None) -> None:
    found = standard().resolve(name)
    assert (found.chip_id, found.count) == (chip_id, count)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "FooChip 9000",
        "NVIDIA A100X",
        "H100 Ultra",
        "RTX 4090 (laptop)",
        "RTX 4090 (cuda laptop)",
        "RTX 5090 D",
        "Super H100",
        "Ascend 910D",
        "RTX 30900",
        "A100-SXM4-80GB MIG 1g.10gb",
    ],
)
def test_a_name_that_is_not_known_is_reported(name: str) -> None:
    found = standard().resolve(name)
    assert found.chip_id is None
    assert found.reason == "the name is not in the alias table"


@pytest.mark.parametrize(("name", "among"), [("TPU", "tpu-v3"), ("RTX 6000", "rtx-6000-ada"), ("TPU v5", "tpu-v5e")])
def test_a_name_that_may_mean_chips_far_apart_lists_them(name: str, among: str) -> None:
    found = standard().resolve(name)
    assert found.chip_id is None
    assert "differ too much" in found.reason
    assert among in found.candidates


def test_a_name_without_variant_is_a_family_that_says_so() -> None:
    found = standard().resolve("4xV100 16GB")
    assert found.chip_id == "v10016gb-any"
    assert found.candidates == ("v100-pcie-16gb", "v100-sxm2-16gb")
    assert standard().resolve(found.chip_id).chip_id == found.chip_id, "an id is a name"


@given(st.sampled_from([chip.id for chip in standard()]), st.sampled_from([str.upper, str.title, str.lower]))
def test_an_id_in_any_case_is_its_chip(chip_id: str, spelled: type[str]) -> None:
    assert standard().resolve(spelled(chip_id)).chip_id == chip_id


@given(st.text(max_size=60))
def test_any_text_has_an_answer(text: str) -> None:
    found = standard().resolve(text)
    assert found.chip_id is not None or found.reason


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("910B3-Ascend-V1", "ascend-910b3"),
        ("910A-Ascend-V1", "ascend-910a"),
        ("310P3-Ascend-V1", "ascend-310p"),
        ("Ascend-V1", None),
        ("910Q7-Ascend-V1", None),
    ],
)
def test_names_of_npu_exporter(name: str, chip: str | None) -> None:
    assert standard().resolve(name).chip_id == chip


@pytest.mark.parametrize(
    ("name", "chip_id", "count"),
    [
        ("3090 24GB", "rtx-3090", None),
        ("RTX 3080 12GB", "rtx-3080-12gb", None),
        ("GeForce GTX TITAN X (cuDNN 5005)", "titan-x-maxwell", None),
        ("Tesla K40c (cuDNN 5005)", "k40", None),
        ("2x RTX 4090 (CUDA 12.4)", "rtx-4090", 2),
        ("MI300X (ROCm)", "mi300x", None),
        ("RTX4070S-12g", "rtx-4070-super", None),
        ("4x NVIDIA RTX PRO 4500", "rtx-pro-4500-blackwell", 4),
        ("Jetson AGX Orin 64GB", "jetson-agx-orin-64gb", None),
        ("Tenstorrent Wormhole n300d", "tt-n300", None),
        ("RTX3080Ti-12G", "rtx-3080-ti", None),
        ("4090 24GB * 2", "rtx-4090", 2),
        ("NVIDIA GeForce RTX 4090 (24564 MiB)", "rtx-4090", None),
        ("1 x NVIDIA RTX 6000 Ada Generation (49140 MiB)", "rtx-6000-ada", 1),
        ("Tesla T4 (15360MiB)", "t4", None),
        ("NVIDIA L40S 46068 MiB", "l40s", None),
        ("Tesla P40-24G", "p40", None),
        ("Tesla V100s-32g", "v100s-pcie", None),
        ("RTX A6000 48GB", "rtx-a6000", None),
        ("24GB RTX 3090", "rtx-3090", None),
        ("MI300X 192GB", "mi300x", None),
        ("4070 Ti 12GB", "rtx-4070-ti", None),
        ("B200 192GB", "b200-sxm", None),
        ("GB200 192GB", "gb200", None),
        ("RTX 6000 Pro Blackwell Server Edition", "rtx-pro-6000-blackwell", None),
        ("昇腾 910B4 32GB", "ascend-910b4", None),
        ("Ascend 910B 64GB", "910b64gb-any", None),
        # As nvidia-smi names and measures them: the memory is part of the name, and stands behind it once more.
        ("NVIDIA H100 80GB HBM3 (81559 MiB)", "h100-sxm5-80gb", None),
        ("8x NVIDIA A100-SXM4-80GB (81920 MiB)", "a100-sxm4-80gb", 8),
        ("Tesla V100-SXM2-16GB, 16160 MiB", "v100-sxm2-16gb", None),
        ("RTX 6000 Ada 48GB (49140 MiB)", "rtx-6000-ada", None),
    ],
)
def test_a_stated_memory_that_the_chip_has_does_not_hide_its_name(name: str, chip_id: str, count: int | None) -> None:
    found = standard().resolve(name)
    assert (found.chip_id, found.count) == (chip_id, count)


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("RTX4090-48G", "rtx-4090"),
        ("Tesla M40-12G", "m40"),
        ("RTX 3070 16GB", "rtx-3070"),
        ("Tesla K80 24GB", "k80"),
        ("NVIDIA A100-SXM4-80GB (40960 MiB)", "a100-sxm4-80gb"),
        ("RTX 3090 24GB (12288 MiB)", "rtx-3090"),
    ],
)
def test_a_stated_memory_that_the_chip_has_not_is_another_chip(name: str, of: str) -> None:
    found = standard().resolve(name)
    assert found.chip_id is None
    assert "memory" in found.reason
    assert of in found.reason


def test_memory_does_not_choose_between_chips_of_a_name() -> None:
    assert standard().resolve("RTX 6000 48GB").chip_id is None
    assert standard().resolve("24GB").chip_id is None


@pytest.mark.parametrize(
    ("name", "chip_id", "count"),
    [
        ("p4d.24xlarge", "a100-sxm4-40gb", 8),
        ("AWS g5.xlarge", "a10g", 1),
        ("Standard_ND96isr_H100_v5", "h100-sxm5-80gb", 8),
        ("NC6s_v3", "v100-pcie-16gb", 1),
        ("a2-highgpu-4g", "a100-sxm4-40gb", 4),
        ("A10G (AWS g5.xlarge)", "a10g", 1),
        ("g5g.xlarge", None, None),
        ("A10G (AWS g6.xlarge)", None, None),
    ],
)
def test_types_of_cloud_machines(name: str, chip_id: str | None, count: int | None) -> None:
    found = standard().resolve(name)
    assert (found.chip_id, found.count) == (chip_id, count)
    assert found.is_machine is (chip_id is not None)


@pytest.mark.parametrize(
    ("name", "chip_id"),
    [
        ("NVIDIA GeForce RTX 3070 8GB GDDR6", "rtx-3070"),
        ("A100 80GB HBM2e", "a10080gb-any"),
        ("RTX 4060 Ti", "4060ti-any"),
        ("RTX 4060 Ti 16GB", "rtx-4060-ti-16gb"),
        ("TITAN X (Pascal)", "titan-x-pascal"),
        ("RTX A6000 Ada", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-blackwell-max-q"),
        ("AMD Radeon RX 7900 XT", "rx-7900-xt"),
        ("Intel Arc A770 Graphics", "arc-a770"),
        # Memory of these is sold in any size, so it hides nothing; U+2011 is a hyphen too.
        ("M2 Ultra 76-Core GPU 192GB", "apple-m2-ultra-76c"),
        ("M1 7\u2011Core GPU 8GB", "apple-m1-7c"),
        ("Apple M1 Max GPU", "applem1max-any"),
        # Other chips than those whose names they hold.
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA RTX 3060 (laptop)", None),
        ("RTX 4070 Max-Q", None),
        ("GTX 1060", None),
        ("NVIDIA vGPU (RTX 4090)", None),
        ("AMD Instinct MI250X GCD", None),
        ("H100 96GB HBM3", None),
    ],
)
def test_names_of_cards_and_laptops(name: str, chip_id: str | None) -> None:
    assert standard().resolve(name).chip_id == chip_id


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Tesla M4", "of another maker"),
        ("NVIDIA Tesla T10", "of another maker"),
        ("AMD H100 PCIe", "of another maker"),
        ("NVIDIA MI300X", "of another maker"),
        # A generation behind a name is no label of the machine: these are chips of their own.
        ("Trainium v3", "not in the alias table"),
        ("Gaudi v3", "not in the alias table"),
        ("TPU v9", "not in the alias table"),
    ],
)
def test_a_maker_or_generation_that_the_chip_has_not_is_another_chip(name: str, reason: str) -> None:
    found = standard().resolve(name)
    assert found.chip_id is None
    assert reason in found.reason


@pytest.mark.parametrize(
    ("name", "chip_id", "count"),
    [
        ("AWS A100-SXM4-80GB", "a100-sxm4-80gb", None),
        ("128 x TPU v4", "tpu-v4", 128),
        ("思元 370-X4", "mlu370-x4", None),
        ("Dell MLU370-X8 x8", "mlu370-x8", 8),
        ("A100 40G PCIe 8卡", "a100-pcie-40gb", 8),
        ("NVIDIA H100-SXM-80GB (8x)", "h100-sxm5-80gb", 8),
        ("H100 SXM5 (8-GPU)", "h100-sxm5-80gb", 8),
        ("NVIDIA HGX H100 8-GPU", "h100-sxm5-80gb", 8),
        ("GB300 NVL72 (72 GPUs)", "gb300", 72),
        ("8卡 A100 SXM4 80GB", "a100-sxm4-80gb", 8),
        ("Ascend NPU 910B3", "ascend-910b3", None),
        ("MetaX MXC500 64GB", "metax-c500", None),
        ("AMD Instinct MI325X OAM", "mi325x", None),
        ("NVIDIA B300 SXM6 AC (275040 MiB)", "b300-sxm", None),
        ("NVIDIA GB300-288GB", "gb300", None),
        ("MTT S80", "mtt-s80", None),
        ("摩尔线程 MTT S80", "mtt-s80", None),
    ],
)
def test_labels_are_taken_away_no_further_than_to_the_first_alias(name: str, chip_id: str, count: int | None) -> None:
    found = standard().resolve(name)
    assert (found.chip_id, found.count) == (chip_id, count)


@pytest.mark.parametrize(
    ("name", "chip_id", "count"),
    [
        ("v5p-64", "tpu-v5p", 32),
        ("TPU v4-4096", "tpu-v4", 2048),
        ("cloud-tpu-v3-2048", "tpu-v3", 1024),
        ("v5litepod-16", "tpu-v5e", 16),
        ("v6e-256", "tpu-v6e", 256),
        ("4x v6e-256", "tpu-v6e", 1024),
        ("ct6e-standard-8t", "tpu-v6e", 8),
        ("p6e-gb200.36xlarge", "gb200", 4),
        ("BM.GPU.MI355X.8", "mi355x", 8),
        ("v4-7", None, None),
        ("v5p-0", None, None),
        ("v9-8", None, None),
    ],
)
def test_slices_of_tpus_and_machines_say_how_many_chips(name: str, chip_id: str | None, count: int | None) -> None:
    found = standard().resolve(name)
    assert (found.chip_id, found.count) == (chip_id, count)
    assert found.is_machine is (chip_id is not None)
