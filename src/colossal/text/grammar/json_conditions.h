// Conversion of single schema keywords to conditions on the values of one type.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/text/grammar/json_form.h"
#include "colossal/text/grammar/json_schema_document.h"

namespace colossal::text {

/// Returns the type names under "type", which is one name or a list. Errors ("json schema"): another value.
std::vector<std::string> types_of(const SchemaDocument& document, const Schema& schema, const Schema& types);
/// Returns the form of all values of a type, given its name.
Form form_of_type(const std::string& type);
/// Returns the values of "enum" or "const". Errors ("json schema"): "enum" is not a list.
std::vector<const Schema*> constants(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                                     const Schema& value);
/// Return the forms of these values, and of all other values. If `values` contains a list, the second leaves out all
/// lists; if it contains an object, all objects.
std::vector<Form> forms_of(const std::vector<const Schema*>& values);
std::vector<Form> forms_without(const SchemaDocument& document, const std::vector<const Schema*>& values);
/// Returns the values of one type that meet a keyword about that type; no value if the keyword is not about a single
/// type.
/// Errors ("json schema"): a wrong value.
std::optional<Form> condition(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                              const Schema& value);

}  // namespace colossal::text
