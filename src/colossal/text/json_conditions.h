// Single keywords of a schema as conditions on the values of one type.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/text/json_form.h"
#include "colossal/text/json_schema_document.h"

namespace colossal::text {

/// The names in "type", one or several. Errors ("json schema"): another value.
std::vector<std::string> types_of(const SchemaDocument& document, const Schema& schema, const Schema& types);
/// All values of a type by its name.
Form form_of_type(const std::string& type);
/// The values of "enum" or "const". Errors ("json schema"): no list in "enum".
std::vector<const Schema*> constants(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                                     const Schema& value);
/// The forms of these values, and of all others. Other lists and objects are left out if there is one among `values`.
std::vector<Form> forms_of(const std::vector<const Schema*>& values);
std::vector<Form> forms_without(const SchemaDocument& document, const std::vector<const Schema*>& values);
/// The values of one type that meet a keyword about that type; none if the keyword is about no single type.
/// Errors ("json schema"): a wrong value.
std::optional<Form> condition(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                              const Schema& value);

}  // namespace colossal::text
