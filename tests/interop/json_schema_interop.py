"""Checks completions of JSON Schemas with the package jsonschema: every text that a schema's grammar allows must be
valid by the draft that the schema was written for. The schemas are the official test suite (Debian package
json-schema-test-suite) and our own. A schema that we refuse is refused by name; the package llguidance shows which of
these could be supported."""

import json
import os
import pathlib
import subprocess

from interop import need, skip

jsonschema, llguidance = need("jsonschema", "llguidance")

suite = pathlib.Path("/usr/share/json-schema-test-suite/tests")
if not suite.is_dir():
    skip(f"{suite} is not there; apt-get install json-schema-test-suite")

drafts = {"draft3": jsonschema.Draft3Validator, "draft4": jsonschema.Draft4Validator,
          "draft6": jsonschema.Draft6Validator, "draft7": jsonschema.Draft7Validator,
          "own": jsonschema.Draft202012Validator}

# Cases that the suite lacks: overlapping branches, nested base URIs, long numbers, negations, combinations.
own = [
    {"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "number"}]},
    {"oneOf": [{"type": "number", "maximum": 5}, {"type": "number", "minimum": 2}, {"type": "null"}]},
    {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "string", "minLength": 2}]},
    {"oneOf": [{"required": ["a"], "properties": {"a": {"type": "null"}}},
               {"required": ["b"], "properties": {"b": {"type": "null"}}}]},
    {"oneOf": [{"enum": [1, "a", True, [1]]}, {"type": "string"}, {"const": True}]},
    {"oneOf": [{"not": {"const": [1]}}, {"type": "array"}]},
    {"oneOf": [{"type": "integer", "not": {"minimum": 10, "multipleOf": 2}}, {"type": "integer", "minimum": 10}]},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": kind}, "x": {"$ref": "#"}},
                "required": ["kind"]} for kind in "ab"]},
    {"$id": "http://a/root", "$ref": "#/$defs/x", "$defs": {
        "x": {"$ref": "inner#/$defs/y"},
        "y": {"type": "string"}, "z": {"$id": "inner", "$defs": {"y": {"type": "null"}}}}},
    {"$defs": {"a": {"$id": "http://b/a.json", "items": {"$ref": "b.json"}, "type": "array", "minItems": 1},
               "b": {"$id": "http://b/b.json", "$anchor": "here", "type": "boolean"}},
     "anyOf": [{"$ref": "http://b/a.json"}, {"$ref": "http://b/b.json#here"}]},
    {"const": 12345678901234567890123}, {"enum": [1.5e300, -0.10, [98765432109876543210.5]]},
    {"not": {"type": ["object", "array", "string"]}}, {"type": "number", "not": {"type": "integer"}},
    {"type": "string", "not": {"enum": ["a", "b", ""]}, "maxLength": 2},
    {"type": "integer", "not": {"const": 3}, "minimum": 2, "maximum": 4},
    {"type": "object", "not": {"required": ["a"]}, "properties": {"a": {}, "b": {"type": "null"}}},
    {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]},
     "else": {"required": ["c"]}, "type": "object",
     "properties": {"a": {"enum": [1, 2]}, "b": {"type": "null"}, "c": {"type": "null"}}},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "dependentRequired": {"a": ["b"]}},
    {"type": "object", "properties": {"a": {"type": "null"}}, "dependentSchemas": {"a": {"minProperties": 2}},
     "additionalProperties": True},
    {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "exclusiveMinimum": -2.5, "maximum": 0.25},
    {"type": "integer", "multipleOf": 7, "minimum": -30, "maximum": 1000}, {"multipleOf": 0.5, "type": "number"},
    {"type": "integer", "minimum": 999999999999999999, "maximum": 1000000000000000000},
    {"type": "string", "pattern": "^[a-c\"\\\\\\n]{2,4}$"},
    {"type": "string", "pattern": "(ab|\u00e9)+x", "maxLength": 12},
    {"type": "string", "pattern": "^\\d{3}-\\d{4}$"},
    {"type": "string", "pattern": "^[^a]*$", "minLength": 3, "maxLength": 5},
    {"type": "object", "patternProperties": {"^x": {"type": "null"}, "y$": {"type": ["null", "boolean"]}},
     "additionalProperties": {"type": "integer"}},
    {"type": "object", "patternProperties": {"^x": {"type": "null"}}, "properties": {"xa": {}, "b": {"type": "null"}},
     "additionalProperties": False},
    {"type": "object", "minProperties": 2, "maxProperties": 3,
     "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": True},
    {"allOf": [{"properties": {"a": {"type": "integer"}}, "additionalProperties": False},
               {"properties": {"a": {"minimum": 3}, "b": {}}}]},
    {"allOf": [{"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}},
               {"items": {"maximum": 7}, "minItems": 2}]},
    {"anyOf": [{"minLength": 2}, {"type": "integer"}], "type": ["string", "integer"], "maxLength": 4, "maximum": 7},
    {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "maxItems": 2},
    {"type": "array", "uniqueItems": True, "items": {"enum": ["a", 1, 1.0, None, [1]]}, "minItems": 2, "maxItems": 3},
    {"uniqueItems": True, "items": {"anyOf": [{"type": "boolean"}, {"const": 0}, {"type": "null"}]}},
    {"type": "object", "propertyNames": {"pattern": "^[ab]", "maxLength": 2}, "additionalProperties": {"type": "null"},
     "maxProperties": 3},
    {"type": "object", "propertyNames": {"anyOf": [{"enum": ["x", "y"]}, {"minLength": 2, "not": {"const": "xx"}}]},
     "properties": {"x": {"type": "null"}, "z": {}}, "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {"discriminator": {"propertyName": "a"}, "x-order": 3, "oneOf": [{"type": "null"}, {"type": "boolean"}]},
    {"enum": [1, 2.5, "abc", "abcd", [1, 2], {"a": 1}], "type": ["number", "string", "object"], "minimum": 2,
     "maxLength": 3, "required": ["a"]},
]

cases = [("own", f"own {i}", schema) for i, schema in enumerate(own)]
for draft in ("draft3", "draft4", "draft6", "draft7"):
    for path in sorted((suite / draft).rglob("*.json")):
        cases += [(draft, f"{path.relative_to(suite)}: {group['description']}", group["schema"])
                  for group in json.loads(path.read_text())]
assert len(cases) > 480, len(cases)

done = subprocess.run([os.environ["COLOSSAL_JSON_SCHEMA_PROBE"], "40", "1"],
                      input=json.dumps([json.dumps(schema) for _, _, schema in cases]), capture_output=True, text=True,
                      timeout=300)
assert done.returncode == 0, done.stderr
results = json.loads(done.stdout)


def llguidance_reads(schema):
    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        return not llguidance.LLMatcher.validate_grammar_with_warnings(grammar)[0]
    except Exception:  # noqa: BLE001 - it refuses
        return False


answers, read, faults, lacking = 0, 0, [], []
for (draft, name, schema), result in zip(cases, results, strict=True):
    if "error" in result:
        if draft == "own":
            faults.append((name, "is refused", result["error"]))
        elif draft != "draft3" and llguidance_reads(schema):
            lacking.append((name, result["error"]))
        continue
    read += 1
    answers += len(result["texts"])
    if not result["texts"]:
        faults.append((name, "has no text that ends"))
    judges = [drafts[draft](schema)]
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        judges.append(jsonschema.Draft202012Validator(schema))
    except jsonschema.SchemaError:
        pass
    for text in result["texts"]:
        value = json.loads(text)
        for judge in judges:
            if not judge.is_valid(value):
                faults.append((name, type(judge).__name__, text, next(judge.iter_errors(value)).message))
for fault in faults[:40]:
    print(*fault)
assert not faults, len(faults)
assert not lacking, lacking
assert read >= 430 and answers >= 17000, (read, answers)
print(f"{read} of {len(cases)} schemas are read, and {answers} answers are valid")
