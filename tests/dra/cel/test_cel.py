"""CEL selectors: results, errors and limits."""

from __future__ import annotations

import pytest

from bayplan.api.dra import DeviceAttribute, DeviceCapacity
from bayplan.api.quantity import Quantity
from bayplan_dra.cel import (
    CelDevice,
    CompileError,
    CostExceeded,
    EvaluationError,
    Interrupted,
    compile_selector,
)

DRIVER = "gpu.example.com"
DEVICE = CelDevice(
    DRIVER,
    {
        "model": DeviceAttribute(string="H100"),
        "index": DeviceAttribute(integer=3),
        "fast": DeviceAttribute(boolean=True),
        "firmware": DeviceAttribute(version="1.10.0"),
        "rails": DeviceAttribute(strings=("a", "b")),
        "other.example.com/rail": DeviceAttribute(integer=7),
    },
    {"memory": DeviceCapacity(Quantity("80Gi"))},
)
ATTR = f'device.attributes["{DRIVER}"]'


def matches(expression: str) -> bool:
    return compile_selector(expression).matches(DEVICE)


TRUE = [
    # the device
    f'device.driver == "{DRIVER}"',
    f'{ATTR}.model == "H100" && {ATTR}["model"] != "A100"',
    'device.attributes["other.example.com"].rail == 7',
    f'device.attributes.exists(d, d == "{DRIVER}")',
    f'"{DRIVER}" in device.attributes && !("no.example.com" in device.attributes)',
    f'!("colour" in {ATTR}) && "model" in {ATTR}',
    f"has({ATTR}.model) && !has({ATTR}.colour)",
    'device.attributes["no.example.com"].size() == 0',
    f'device.capacity["{DRIVER}"].memory == quantity("81920Mi")',
    f"{ATTR}.all(name, name.size() > 0)",
    f'cel.bind(a, {ATTR}, a.model == "H100" && a.index == 3)',
    # logic
    "true || 1 / 0 == 1",
    "1 / 0 == 1 || true",
    "!(false && 1 / 0 == 1)",
    "false ? 1 / 0 == 1 : true",
    # numbers
    "1 + 2 * 3 == 7 && -7 / 2 == -3 && -7 % 2 == -1",
    "1 < 2.5 && 2u > 1 && 1.0 == 1.0",
    "0x1F == 31 && 1e3 == 1000.0",
    'int("42") == 42 && double("1.5") == 1.5 && string(42) == "42" && uint(3) == 3u',
    "dyn(1) == dyn(1.0) && dyn(1) != dyn(true) && dyn(1) != dyn('1')",
    "math.greatest(1, 5, 3) == 5 && math.least([4, 2]) == 2 && math.ceil(1.2) == 2.0",
    # strings
    '"a\\tb".size() == 3 && r"\\d" == "\\\\d" && "\\u00e9" == "é"',
    '"hello".charAt(1) == "e" && "hello".indexOf("l") == 2 && "hello".lastIndexOf("l") == 3',
    '"a,b,c".split(",") == ["a", "b", "c"] && "a,b,c".split(",", 2) == ["a", "b,c"]',
    '["a", "b"].join("-") == "a-b" && "aXbX".replace("X", "y", 1) == "aybX"',
    '" x ".trim() == "x" && "ab".upperAscii() == "AB" && "tacocat".substring(4) == "cat"',
    '"%s has %d of %.1f".format(["x", dyn(2), dyn(1.25)]) == "x has 2 of 1.2"',
    'strings.quote("a\\"b") == "\\"a\\\\\\"b\\""',
    '"abc123".find("[0-9]+") == "123" && "a1b2".findAll("[0-9]") == ["1", "2"]',
    '"gpu-7".matches("^gpu-[0-9]+$") && matches("x", "x")',
    # lists, maps, sets
    "[1, 2, 3].filter(x, x > 1).map(x, x * 2) == [4, 6]",
    "[3, 1, 2].sort() == [1, 2, 3] && [1, 2, 3].sum() == 6 && [2, 5].max() == 5",
    '[{"n": 7, "w": 1}, {"n": 8, "w": 0}].sortBy(e, e.w)[0].n == 8',
    "[1, 2, 1].distinct() == [1, 2] && [[1], [2, 3]].flatten() == [1, 2, 3]",
    "[1, 2, 3].slice(1, 3) == [2, 3] && [1, 2].reverse() == [2, 1] && [1].first().value() == 1",
    "[1, 2].isSorted() && [1, 2, 1].lastIndexOf(1) == 2 && 2 in [1, 2]",
    "[1, 2, 3].exists_one(x, x > 2) && [1].existsOne(i, x, i == 0 && x == 1)",
    '{"a": 1, "b": 2}.transformMap(k, v, v + 1) == {"a": 2, "b": 3}',
    '{"a": 1}.transformMapEntry(k, v, {string(v): k}) == {"1": "a"}',
    '{"a": 1}.a == 1 && {"a": 1}["a"] == 1 && "a" in {"a": 1}',
    "sets.equivalent([1, 1, 2], [2, 1]) && sets.intersects([1], [1, 2])",
    # optionals
    f'{ATTR}.?colour.orValue("red") == "red" && {ATTR}[?"model"].value() == "H100"',
    f"!{ATTR}.?colour.hasValue() && {ATTR}.?index.optMap(i, i + 1).value() == 4",
    "optional.of(1).or(optional.of(2)).value() == 1 && !optional.none().hasValue()",
    "[?optional.none(), 1, ?optional.of(2)] == [1, 2]",
    '{?"a": optional.none(), "b": 1} == {"b": 1}',
    "optional.ofNonZeroValue(0).hasValue() == false",
    # Kubernetes
    'quantity("1.5Gi").isGreaterThan(quantity("1Gi")) && isQuantity("5m") && !isQuantity("x")',
    'quantity("1Ki").asInteger() == 1024 && quantity("1").add(1).compareTo(quantity("2")) == 0',
    f'{ATTR}.firmware.isGreaterThan(semver("1.9.9")) && {ATTR}.firmware.minor() == 10',
    'semver("1.0.0-rc.1").isLessThan(semver("1.0.0")) && semver("v1.2", true).patch() == 0',
    "dyn(null).includes(null) && !dyn(1).includes('a')",
    "lists.range(49).includes(47) && !dyn({'a': 1}).includes('a')",
    f"!has({ATTR}.index.a) && {ATTR}.index.?a.orValue(1) == 1",
    f'{ATTR}.rails[?9].orValue("") == "" && {ATTR}.rails[?0].value() == "a"',
    f'{ATTR}.rails.includes("b") && {ATTR}.model.includes("H100") && {ATTR}.rails.size() == 2',
    'cidr("10.0.0.0/8").containsCIDR("10.1.0.0/16") && ip("10.0.0.1").family() == 4',
    'cidr("10.0.0.7/8").ip() == ip("10.0.0.7")',
    'cidr("10.0.0.7/8").masked() == cidr("10.0.0.0/8") && cidr("::/64").prefixLength() == 64',
    'url("https://a.example.com:8443/x?y=1").getPort() == "8443"',
    '!format.named("dns1123Label").value().validate("ok").hasValue()',
    'format.dns1123Label().validate("Not Ok").hasValue()',
    'timestamp("2026-01-02T00:00:00Z") - duration("24h") == timestamp("2026-01-01T00:00:00Z")',
    'type(1) == int && type("") == string',
]


@pytest.mark.parametrize("expression", TRUE)
def test_the_expression_holds(expression: str) -> None:
    assert matches(expression) is True


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "Syntax error"),
        ("1 +", "Syntax error"),
        ('device.driver == "x', "Syntax error"),
        ("colour", "ERROR: <input>:1:1: undeclared reference to 'colour'"),
        ("true &&\n  colour", "ERROR: <input>:2:3: undeclared reference to 'colour'"),
        ("device.colour == 1", "undefined field 'colour'"),
        ("device.driver > 1", "found no matching overload for '_>_' applied to '(string, int)'"),
        ("1 && true", "found no matching overload for '_&&_'"),
        ('["a", 1].size() > 0', "expected type 'string' but found 'int'"),
        ("1 == 'a'", "found no matching overload for '_==_'"),
        ("true ? 1 : 'a'", "found no matching overload for '_?_:_'"),
        ("1.exists(x, true)", "Syntax error"),
        ("device.driver.exists(x, true)", "cannot be range of a comprehension"),
        ("[1].exists(x + 1, true)", "argument must be a simple name"),
        ("[1].exists(x, x)", "expected type 'bool' but found 'int'"),
        ("'a'.begins('b')", "undeclared reference to 'begins'"),
        ("has(device)", "invalid argument to has() macro"),
        ("99999999999999999999 > 0", "does not fit into 64 bits"),
        ('"\\q" == ""', "unknown escape"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("Foo{a: 1} == 1", "message literals are not supported"),
    ],
)
def test_a_compile_error_has_its_place(expression: str, message: str) -> None:
    with pytest.raises(CompileError) as raised:
        compile_selector(expression)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (f'{ATTR}.colour == "red"', "no such key: colour"),
        ('device.capacity["x.example.com"].memory.isInteger()', "no such key: memory"),
        (f"{ATTR}.model", "CEL result of type string could not be converted to bool"),
        (f"{ATTR}.rails", "CEL result of type list could not be converted to bool"),
        (f"{ATTR}.firmware", "CEL result of type kubernetes.Semver could not be converted"),
        (f'{ATTR}.rails["a"] == "a"', "unsupported index type 'string' in list"),
        (f"{ATTR}.rails.?a.hasValue()", "unsupported index type 'string' in list"),
        (f'{ATTR}.rails[1.5] == "a"', "unsupported index value 1.5 in list"),
        (f'{ATTR}.rails[1.0 / 0.0] == "a"', "unsupported index value inf in list"),
        (f"{ATTR}.index[0] == 1", "no such key: 0"),
        (f"{ATTR}.model.size.a == 1", "no such key: size"),
        ("lists.range(49).includes(48)", "cannot be applied to lists longer than 48 values"),
        (f"{ATTR}.model > 1", "no such overload"),
        (f"{ATTR}.index.exists(x, true)", "got 'types.Int', expected iterable type"),
        ("1 / 0 == 1", "division by zero"),
        ("9223372036854775807 + 1 > 0", "integer overflow"),
        ("[1][5] == 1", "index out of bounds: 5"),
        ('quantity("x").isInteger()', "quantities must match"),
        ('semver("1").major() == 1', "is not a semantic version"),
        ('"a".matches("(")', "error parsing regexp"),
        ("optional.none().value() == 1", "optional.none() dereference"),
    ],
)
def test_an_evaluation_error_says_why(expression: str, message: str) -> None:
    with pytest.raises(EvaluationError) as raised:
        matches(expression)
    assert message in str(raised.value)


def test_an_expression_of_more_than_ten_kibibytes_is_refused() -> None:
    with pytest.raises(CompileError, match="the limit is 10240"):
        compile_selector(f'device.driver == "{"x" * 10_300}"')


def test_deep_nesting_is_refused_but_long_chains_are_not() -> None:
    with pytest.raises(CompileError, match="recursion limit exceeded: 250"):
        compile_selector("(" * 300 + "true == true" + " == true)" * 300)
    with pytest.raises(CompileError, match="recursion limit exceeded: 250"):
        compile_selector("!" * 600 + "true")
    assert matches(" && ".join(["true"] * 1_000))
    assert matches("(" * 300 + "true" + ")" * 300)


@pytest.mark.parametrize(
    "expression",
    [
        "[1,2,3,4,5,6,7,8,9].all(a, " * 7 + "true" + ")" * 7,
        "lists.range(1000000).all(x, true)",
        'cel.bind(a0, "xxxxxxxxxx", '
        + "".join(f"cel.bind(a{i + 1}, a{i} + a{i}, " for i in range(40))
        + "a40.size() > 0"
        + ")" * 41,
        '"x".replace("", "yyyyyyyyyy").size() > 0 && lists.range(600000).map(x, "z").size() > 0',
    ],
)
def test_an_expensive_evaluation_is_stopped(expression: str) -> None:
    with pytest.raises(CostExceeded, match="actual cost limit exceeded"):
        matches(expression)


def test_an_interrupt_stops_a_long_evaluation() -> None:
    program = compile_selector("lists.range(500).all(x, lists.range(100).all(y, true))")
    asked: list[int] = []

    def interrupt() -> bool:
        asked.append(1)
        return len(asked) > 3

    with pytest.raises(Interrupted, match="operation interrupted"):
        program.matches(DEVICE, interrupt)
    assert len(asked) == 4


def test_devices_that_agree_on_what_is_read_share_one_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = compile_selector(f'{ATTR}.model == "H100" && device.driver == "{DRIVER}"')
    assert program.reads == {("attribute", f"{DRIVER}/model"), ("driver", "")}
    evaluated: list[CelDevice] = []
    plain = program.matches

    def counting(device: CelDevice, interrupt: object = None) -> bool:
        evaluated.append(device)
        return plain(device)

    monkeypatch.setattr(program, "matches", counting)
    devices = [
        CelDevice(
            DRIVER,
            {
                "uuid": DeviceAttribute(string=str(number)),
                "model": DeviceAttribute(string="H100" if number % 2 else "A100"),
            },
            {},
        )
        for number in range(50)
    ]
    assert [program.result(one) for one in devices] == [bool(number % 2) for number in range(50)]
    assert len(evaluated) == 2


def test_values_of_different_types_do_not_share_a_result() -> None:
    program = compile_selector(f"{ATTR}.flag == true")
    yes = CelDevice(DRIVER, {"flag": DeviceAttribute(boolean=True)}, {})
    one = CelDevice(DRIVER, {"flag": DeviceAttribute(integer=1)}, {})
    assert program.result(yes) is True
    assert program.result(one) is False


def test_gates_decide_what_is_declared() -> None:
    with pytest.raises(CompileError, match="undefined field 'allowMultipleAllocations'"):
        compile_selector("device.allowMultipleAllocations", multiple_allocations=False)
    with pytest.raises(CompileError, match="undeclared reference to 'includes'"):
        compile_selector(f'{ATTR}.rails.includes("a")', lists=False)
    with pytest.raises(EvaluationError, match="attribute rails: unsupported attribute value"):
        CelDevice(DRIVER, {"rails": DeviceAttribute(strings=("a",))}, {}, lists=False)
