// Checks of values against forms, and the search for forms without values.
#include <algorithm>
#include <set>

#include "colossal/base/json_file.h"
#include "colossal/text/grammar/json_schema_forms.h"

namespace colossal::text {
namespace {

constexpr int kDeepestLook = 3;   // maximum depth into values when searching for contradictions
constexpr int64_t kMaxItems = 8;  // maximum number of items of a list that are examined

const Schema* keyword_of(const Schema& schema, const char* keyword) {
  const auto at = schema.find(keyword);
  return at == schema.end() ? nullptr : &*at;
}

bool has_type(const Form& form, const Schema& value) {
  switch (form.type) {
    case JsonType::Null:
      return value.is_null();
    case JsonType::Boolean:
      return value.is_boolean() && (value == true ? form.may_be_true : form.may_be_false);
    case JsonType::Number:
      return value.is_number();
    case JsonType::String:
      return value.is_string();
    case JsonType::Array:
      return value.is_array();
    case JsonType::Object:
      return value.is_object();
  }
  return false;
}

bool has_size(const Form& form, int64_t size) {
  return size >= form.min_size && (!form.max_size || size <= *form.max_size);
}

}  // namespace

Literals SchemaForms::item(const Form& form, size_t index) {
  Literals literals;
  for (const Schema* part : form.parts) {
    const Schema* rest = keyword_of(*part, "items");
    const Schema* front = keyword_of(*part, "prefixItems");
    if (rest && rest->is_array()) front = rest, rest = keyword_of(*part, "additionalItems");
    const Schema* own = front && index < front->size() ? &(*front)[index] : rest;
    if (own) literals.insert({number_of(*own)});
  }
  return literals;
}

Literals SchemaForms::member(const Form& form, const std::string& name) {
  Literals literals;
  if (const auto own = form.members.find(name); own != form.members.end()) literals = own->second;
  for (const Schema* part : form.parts) {
    const Schema* properties = keyword_of(*part, "properties");
    const Schema* patterns = keyword_of(*part, "patternProperties");
    bool is_known = properties && properties->contains(name);
    if (is_known) literals.insert({number_of((*properties)[name])});
    if (patterns)
      for (const auto& [pattern, schema] : patterns->items())
        if (matches(pattern, name)) is_known = true, literals.insert({number_of(schema)});
    const Schema* others = keyword_of(*part, "additionalProperties");
    if (!is_known && others) literals.insert({number_of(*others)});
  }
  return literals;
}

bool SchemaForms::allows_name(const Form& form, const std::string& name) {
  return std::all_of(form.parts.begin(), form.parts.end(), [&](const Schema* part) {
    const Schema* names = keyword_of(*part, "propertyNames");
    return !names || allows(one(*names), Schema(name));
  });
}

std::optional<std::vector<std::string>> SchemaForms::spelled_values(const Literals& literals) {
  std::vector<std::string> values;
  std::set<std::string> seen;
  const auto add = [&](const std::string& spelled, const std::string& canonical) {
    if (seen.insert(canonical).second) values.push_back(spelled);
  };
  for (const Form& form : of(literals)) {
    if (form.values) {
      for (const Schema* value : values_of(form)) add(document_.spelled(*value), document_.canonical(*value));
    } else if (form.type == JsonType::Boolean) {
      if (form.may_be_false) add("false", "false");
      if (form.may_be_true) add("true", "true");
    } else if (form.type == JsonType::Null) {
      add("null", "null");
    } else {
      return {};
    }
  }
  return values;
}

bool SchemaForms::matches(const std::string& pattern, const std::string& text) {
  std::unique_ptr<TextAutomaton>& matcher = matchers_[pattern];
  if (!matcher) {
    matcher = std::make_unique<TextAutomaton>(automaton_budget_);
    matcher->add_pattern(pattern);
    matcher->build();
  }
  return !matcher->sets_of(text).empty();
}

bool SchemaForms::is_empty(const Literals& literals, int depth) {
  bool has_value = false;
  const bool is_certain = leaves_none_out([&] {
    const std::vector<Form> forms = of(literals);
    has_value = std::any_of(forms.begin(), forms.end(), [&](const Form& form) { return !is_empty(form, depth); });
  });
  return is_certain && !has_value;
}

bool SchemaForms::is_empty(const Form& form, int depth) {
  if (is_contradictory(form)) return true;
  if (form.values) return values_of(form).empty();
  if (depth == kDeepestLook) return false;
  if (form.type == JsonType::Array)
    for (int64_t i = 0; i < std::min(form.min_size, kMaxItems); ++i)
      if (is_empty(item(form, static_cast<size_t>(i)), depth + 1)) return true;
  if (form.type == JsonType::Object)
    for (const std::string& name : form.required)
      if (!allows_name(form, name) || is_empty(member(form, name), depth + 1)) return true;
  return false;
}

std::vector<const Schema*> SchemaForms::values_of(const Form& form) {
  Form conditions = form;
  conditions.values.reset();
  std::vector<const Schema*> values = form.values.value_or(std::vector<const Schema*>());
  std::erase_if(values, [&](const Schema* value) { return !allows(conditions, *value); });
  return values;
}

bool SchemaForms::allows(const Literals& literals, const Schema& value) {
  const std::vector<Form> forms = of(literals);
  return std::any_of(forms.begin(), forms.end(), [&](const Form& form) { return allows(form, value); });
}

bool SchemaForms::allows(const Form& form, const Schema& value) {
  if (!has_type(form, value)) return false;
  const auto is_value = [&](const Schema* one) { return document_.canonical(*one) == document_.canonical(value); };
  if (form.values && std::none_of(form.values->begin(), form.values->end(), is_value)) return false;
  if (value.is_number()) return allows_number(form, value);
  if (value.is_string()) return allows_string(form, value.get<std::string>());
  if (!value.is_structured()) return true;
  if (!has_size(form, static_cast<int64_t>(value.size()))) return false;
  if (value.is_array()) {
    std::set<std::string> seen;
    for (size_t i = 0; i < value.size(); ++i) {
      if (!allows(item(form, i), value[i])) return false;
      if (form.is_unique && !seen.insert(document_.canonical(value[i])).second) return false;
    }
    return true;
  }
  for (const std::string& name : form.required)
    if (!value.contains(name)) return false;
  return std::all_of(value.items().begin(), value.items().end(), [&](const auto& one) {
    return !form.forbidden.contains(one.key()) && allows_name(form, one.key()) &&
           allows(member(form, one.key()), one.value());
  });
}

bool SchemaForms::allows_number(const Form& form, const Schema& value) {
  const Decimal number = document_.decimal(value);
  if (number.is_whole() ? !form.is_whole : !form.is_fraction) return false;
  if (form.min && (number < *form.min || (form.excludes_min && number == *form.min))) return false;
  if (form.max && (*form.max < number || (form.excludes_max && number == *form.max))) return false;
  return std::all_of(form.divisors.begin(), form.divisors.end(), [&](const Schema* one) {
    const Decimal divisor = document_.decimal(*one);
    const int64_t scale = std::max(number.decimals(), divisor.decimals());
    const std::optional<int64_t> size = number.floor(scale), step = divisor.floor(scale);
    leaves_out_ |= !size || !step;  // the numbers are too large for the division
    return size && step && *size % *step == 0;
  });
}

bool SchemaForms::allows_string(const Form& form, const std::string& text) {
  const auto length = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  const auto has_match = [&](const std::string& pattern) { return matches(pattern, text); };
  return has_size(form, length) && std::all_of(form.patterns.begin(), form.patterns.end(), has_match) &&
         std::none_of(form.forbidden_patterns.begin(), form.forbidden_patterns.end(), has_match) &&
         std::find(form.forbidden_texts.begin(), form.forbidden_texts.end(), text) == form.forbidden_texts.end();
}

}  // namespace colossal::text
