#include "colossal/text/grammar/json_schema_keywords.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"
#include "colossal/text/grammar/grammar.h"
#include "colossal/text/grammar/text_automaton.h"

namespace colossal::text {
namespace {

constexpr size_t kMaxExcluded = 200;  // maximum number of excluded numbers; each interval between two of them is a
                                      // form

JsonType json_type_of(const Schema& value) {
  if (value.is_object()) return JsonType::Object;
  if (value.is_array()) return JsonType::Array;
  if (value.is_string()) return JsonType::String;
  if (value.is_boolean()) return JsonType::Boolean;
  return value.is_null() ? JsonType::Null : JsonType::Number;
}

int64_t count_of(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                 const Schema& value) {
  const double number = value.is_number() ? value.get<double>() : -1;
  document.check(number >= 0 && number <= Grammar::kMaxNodes && std::trunc(number) == number, schema, keyword,
                 " must be a whole number of at most ", Grammar::kMaxNodes, ": got ", printable(value.dump()));
  return static_cast<int64_t>(number);
}

std::optional<Form> number_condition(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                                     const Schema& value) {
  Form form{.type = JsonType::Number, .is_mentioned = true};
  if (keyword == "multipleOf") {
    document.check(value.is_number() && value > 0, schema, "multipleOf must be a number greater than 0: got ",
                   printable(value.dump()));
    form.divisors = {&value};
    return form;
  }
  const bool is_min = keyword == "minimum" || keyword == "exclusiveMinimum";
  if (!is_min && keyword != "maximum" && keyword != "exclusiveMaximum") return {};
  const bool is_exclusive = keyword.starts_with("exclusive");
  if (is_exclusive && value.is_boolean()) return {};  // draft 4 has a flag here; the keyword of the bound reads it
  document.check(value.is_number(), schema, keyword, " must be a number: got ", printable(value.dump()));
  const auto old = schema.find(is_min ? "exclusiveMinimum" : "exclusiveMaximum");
  const bool excludes = is_exclusive || (old != schema.end() && *old == true);
  (is_min ? form.min : form.max) = document.decimal(value);
  (is_min ? form.excludes_min : form.excludes_max) = excludes;
  return form;
}

std::vector<std::string> names_in(const SchemaDocument& document, const Schema& schema, const Schema& value) {
  document.check(value.is_array(), schema, "required must be a list of names");
  std::vector<std::string> names;
  for (const Schema& name : value) {
    document.check(name.is_string(), schema, "required must be a list of names");
    names.push_back(name.get<std::string>());
  }
  return names;
}

void check_pattern(const SchemaDocument& document, const Schema& schema, const std::string& pattern) {
  try {
    PatternStates states;
    add_pattern_way(states, 0, pattern, states.add());
  } catch (const Error& error) {
    document.fail(schema, error.message());
  }
}

void check_parts(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                 const Schema& value) {
  if (keyword == "properties" || keyword == "patternProperties")
    document.check(value.is_object(), schema, keyword, " must be an object of schemas");
  if (keyword == "patternProperties")
    for (const auto& [pattern, one] : value.items()) check_pattern(document, schema, pattern);
  if (keyword == "prefixItems") document.check(value.is_array(), schema, "prefixItems must be a list of schemas");
  document.check(keyword != "items" || !value.is_array() || !schema.contains("prefixItems"), schema,
                 "items must be one schema if there are prefixItems");
}

}  // namespace

std::string misspelled_constraint(const std::string& keyword) {
  constexpr size_t kMinLength = 5;  // short names may be meant: note, item
  if (keyword.size() < kMinLength || kConstraints.contains(keyword)) return "";
  for (const std::string& constraint : kConstraints) {
    const bool is_near = keyword.size() <= constraint.size() + 1 && constraint.size() <= keyword.size() + 1;
    if (is_near && edit_distance(keyword, constraint) == 1) return constraint;
  }
  return "";
}

bool is_annotation(const std::string& keyword) {
  return !kConstraints.contains(keyword) && !kUnsupported.contains(keyword) && misspelled_constraint(keyword).empty();
}

std::vector<std::string> types_of(const SchemaDocument& document, const Schema& schema, const Schema& types) {
  std::vector<std::string> names;
  const auto add = [&](const Schema& one) {
    static const std::set<std::string> known = {"object", "array", "string", "number", "integer", "boolean", "null"};
    document.check(one.is_string() && known.contains(one.get<std::string>()), schema,
                   "type must be object, array, string, number, integer, boolean or null, or a list of them");
    names.push_back(one.get<std::string>());
  };
  if (types.is_array())
    std::for_each(types.begin(), types.end(), add);
  else
    add(types);
  document.check(!names.empty(), schema, "type must name a type");
  return names;
}

Form form_of_type(const std::string& type) {
  if (type == "object") return {.type = JsonType::Object, .is_typed = true};
  if (type == "array") return {.type = JsonType::Array, .is_typed = true};
  if (type == "string") return {.type = JsonType::String, .is_typed = true};
  if (type == "boolean") return {.type = JsonType::Boolean, .is_typed = true};
  if (type == "null") return {.type = JsonType::Null, .is_typed = true};
  Form form{.type = JsonType::Number, .is_typed = true};
  form.is_fraction = type == "number";
  return form;
}

std::vector<const Schema*> constants(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                                     const Schema& value) {
  if (keyword == "const") return {&value};
  document.check(value.is_array(), schema, "enum must be a list");
  std::vector<const Schema*> all;
  for (const Schema& one : value) all.push_back(&one);
  return all;
}

std::vector<Form> forms_of(const std::vector<const Schema*>& values) {
  std::vector<Form> forms = all_types();
  for (Form& form : forms) {
    form.is_typed = true;
    form.values.emplace();
    for (const Schema* value : values)
      if (json_type_of(*value) == form.type) form.values->push_back(value);
  }
  std::erase_if(forms, [](const Form& form) { return form.values->empty(); });
  return forms;
}

std::vector<Form> forms_without(const SchemaDocument& document, const std::vector<const Schema*>& values) {
  std::vector<Form> forms = all_types();
  std::vector<Decimal> numbers;
  for (const Schema* value : values) {
    const JsonType type = json_type_of(*value);
    if (type == JsonType::Number) numbers.push_back(document.decimal(*value));
    for (Form& form : forms) {
      if (form.type != type) continue;
      if (type == JsonType::String) form.forbidden_texts.push_back(value->get<std::string>());
      if (type == JsonType::Boolean) (*value == true ? form.may_be_true : form.may_be_false) = false;
    }
    if (type == JsonType::Null || value->is_structured())
      std::erase_if(forms, [&](const Form& form) { return form.type == type; });
  }
  std::erase_if(forms, [&](const Form& form) { return form.type == JsonType::Number; });
  document.check(numbers.size() <= kMaxExcluded, document.whole(), "an enum that must not hold may have at most ",
                 kMaxExcluded, " numbers: got ", numbers.size());
  std::sort(numbers.begin(), numbers.end());
  Form between{.type = JsonType::Number};
  for (const Decimal& number : numbers) {
    between.max = number, between.excludes_max = true;
    forms.push_back(between);
    between.min = number, between.excludes_min = true;
  }
  between.max.reset(), between.excludes_max = false;
  forms.push_back(between);
  std::erase_if(forms, is_contradictory);
  return forms;
}

std::optional<Form> condition(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                              const Schema& value) {
  if (std::optional<Form> form = number_condition(document, schema, keyword, value)) return form;
  static const std::set<std::string> sizes = {"minLength", "maxLength",     "minItems",
                                              "maxItems",  "minProperties", "maxProperties"};
  const bool is_object = kMemberKeywords.contains(keyword) || keyword.ends_with("Properties") || keyword == "required";
  const bool is_array = kItemKeywords.contains(keyword) || keyword.ends_with("Items");
  Form form{.type = is_object ? JsonType::Object : is_array ? JsonType::Array : JsonType::String, .is_mentioned = true};
  if (sizes.contains(keyword)) {
    const int64_t size = count_of(document, schema, keyword, value);
    if (keyword.starts_with("min"))
      form.min_size = size;
    else
      form.max_size = size;
  } else if (keyword == "uniqueItems") {
    document.check(value.is_boolean(), schema, "uniqueItems must be true or false");
    form.is_unique = value.get<bool>();
  } else if (keyword == "pattern") {
    document.check(value.is_string(), schema, "pattern must be a string");
    form.patterns = {value.get<std::string>()};
    check_pattern(document, schema, form.patterns[0]);
  } else if (keyword == "required") {
    for (const std::string& name : names_in(document, schema, value)) form.required.insert(name);
  } else if (kMemberKeywords.contains(keyword) || kItemKeywords.contains(keyword)) {
    check_parts(document, schema, keyword, value);
    form.parts = {&schema};
  } else {
    return {};
  }
  return form;
}

}  // namespace colossal::text
