"""The stream of a sweep: every case of every operator, each once, in an order that a seed permutes."""

from __future__ import annotations

from fuzzcompile.fuzz.opinfo_cells import OpInfoOperator, iter_cells, order_cells

ADD = OpInfoOperator("add", "", ("float32", "int64"), ("float32",), in_place=True, samples=7, errors=2)
ABS = OpInfoOperator("abs", "", ("float32",), (), in_place=False, samples=1, errors=0)


def test_an_operator_is_crossed_with_dtypes_layouts_gradients_and_groups_of_samples():
    cells = list(iter_cells(ADD))
    assert len(set(cells)) == len(cells)
    assert {cell.chunk for cell in cells if cell.form == "function"} == {0, 1}  # seven samples are two groups
    assert {cell.dtype for cell in cells if cell.backward} == {"float32"}
    assert {(cell.dtype, cell.backward) for cell in cells if cell.values == "extreme"} == {
        ("float32", True), ("int64", False),
    }  # fmt: skip
    assert sum(cell.form == "error" for cell in cells) == 2
    assert not any(cell.form == "in_place" for cell in iter_cells(ABS))


def test_a_seed_permutes_the_stream_and_the_first_samples_come_first():
    first, second = order_cells([ADD, ABS], 0), order_cells([ADD, ABS], 1)
    assert first == order_cells([ADD, ABS], 0)
    assert first != second
    assert set(first) == set(second) == {*iter_cells(ADD), *iter_cells(ABS)}
    groups = [cell.chunk for cell in first if cell.form != "error"]
    assert groups == sorted(groups)
