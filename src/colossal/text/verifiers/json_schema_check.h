// Checks whether JSON values are valid for a JSON Schema (https://json-schema.org, draft 7; implemented with valijson).
//
//   const text::JsonSchemaCheck check(nlohmann::json::parse(R"({"required": ["age"]})"));
//   check.fault_of({{"name", "Ann"}});  // "<root>: Missing required property 'age'."
#pragma once
#include <memory>
#include <string>

#include "colossal/base/json.h"

namespace colossal::text {

/// A compiled schema. Unlike json_grammar(), which describes how a value is written, it accepts every valid value.
///
/// `format` and other annotations are ignored. Patterns are those of Regex.
/// Thread safety: none, because patterns are compiled when they are first needed.
class JsonSchemaCheck {
 public:
  /// Compiles a schema. Errors ("json schema"), with the path of the part: a keyword that draft 7 lacks and that would
  /// change what is valid (prefixItems, unevaluatedProperties, dependentRequired, $dynamicRef, ...); a $ref that is not
  /// a JSON pointer into the schema, "#/$defs/name"; schemas that refer to one another without end; a keyword with a
  /// wrong value; a schema nested deeper than 100 levels.
  explicit JsonSchemaCheck(nlohmann::json schema);
  JsonSchemaCheck(JsonSchemaCheck&&) noexcept;
  ~JsonSchemaCheck();

  /// Returns "" if the value is valid, else the first reason why it is not, with its path. A pattern that backtracks
  /// more than ten million times is such a reason. The value must not be nested deeper than 100 levels.
  std::string fault_of(nlohmann::json value) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace colossal::text
