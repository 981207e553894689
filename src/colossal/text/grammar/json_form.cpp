#include "colossal/text/grammar/json_form.h"

#include <algorithm>
#include <utility>

namespace colossal::text {
namespace {

template <class List>
void append(List& to, const List& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Replaces `bound` by the tighter of the two bounds.
void tighten(std::optional<Decimal>& bound, bool& excludes, const std::optional<Decimal>& other, bool other_excludes,
             bool is_min) {
  if (!other) return;
  if (!bound || (is_min ? *bound < *other : *other < *bound)) {
    bound = other, excludes = other_excludes;
  } else if (*bound == *other) {
    excludes = excludes || other_excludes;
  }
}

}  // namespace

std::vector<Form> all_types() {
  std::vector<Form> forms;
  for (const JsonType type :
       {JsonType::Object, JsonType::Array, JsonType::String, JsonType::Number, JsonType::Boolean, JsonType::Null})
    forms.push_back({.type = type});
  return forms;
}

std::vector<Form> all_types_with(const Form& form) {
  std::vector<Form> forms = all_types();
  for (Form& one : forms)
    if (one.type == form.type) one = form;
  return forms;
}

Form inverse(Form form) {
  if (form.min || form.max) {
    std::swap(form.min, form.max);
    std::swap(form.excludes_min, form.excludes_max);
    form.excludes_min = form.min && !form.excludes_min;
    form.excludes_max = form.max && !form.excludes_max;
  } else if (!form.patterns.empty()) {
    std::swap(form.patterns, form.forbidden_patterns);
  } else if (form.max_size) {
    form.min_size = *form.max_size + 1;
    form.max_size.reset();
  } else {
    form.max_size = form.min_size - 1;  // -1 becomes a maximum that no value meets
    form.min_size = 0;
  }
  return form;
}

std::optional<Form> both(const Form& a, const Form& b, const SchemaDocument& document) {
  if (a.type != b.type) return {};
  Form form = a;
  form.is_typed |= b.is_typed, form.is_mentioned |= b.is_mentioned;
  form.may_be_true &= b.may_be_true, form.may_be_false &= b.may_be_false;
  form.is_unique |= b.is_unique;
  form.is_whole &= b.is_whole, form.is_fraction &= b.is_fraction;
  tighten(form.min, form.excludes_min, b.min, b.excludes_min, true);
  tighten(form.max, form.excludes_max, b.max, b.excludes_max, false);
  append(form.divisors, b.divisors);
  form.min_size = std::max(a.min_size, b.min_size);
  if (b.max_size) form.max_size = std::min(a.max_size.value_or(*b.max_size), *b.max_size);
  append(form.patterns, b.patterns);
  append(form.forbidden_patterns, b.forbidden_patterns);
  append(form.forbidden_texts, b.forbidden_texts);
  for (const Schema* part : b.parts)
    if (std::find(form.parts.begin(), form.parts.end(), part) == form.parts.end()) form.parts.push_back(part);
  form.required.insert(b.required.begin(), b.required.end());
  form.forbidden.insert(b.forbidden.begin(), b.forbidden.end());
  for (const auto& [name, literals] : b.members) form.members[name].insert(literals.begin(), literals.end());
  if (!form.values) {
    form.values = b.values;
  } else if (b.values) {
    std::set<std::string> others;
    for (const Schema* value : *b.values) others.insert(document.canonical(*value));
    std::erase_if(*form.values, [&](const Schema* value) { return !others.contains(document.canonical(*value)); });
  }
  if (is_contradictory(form)) return {};
  return form;
}

bool is_contradictory(const Form& form) {
  if (form.values && form.values->empty()) return true;
  switch (form.type) {
    case JsonType::Null:
      return false;
    case JsonType::Boolean:
      return !form.may_be_true && !form.may_be_false;
    case JsonType::Number:
      if (!form.is_whole && !form.is_fraction) return true;
      if (!form.min || !form.max) return false;
      if (*form.max < *form.min) return true;
      if (*form.min == *form.max)
        return form.excludes_min || form.excludes_max || (form.min->is_whole() ? !form.is_whole : !form.is_fraction);
      return !form.is_fraction && form.min->ceil() && form.max->floor() && *form.max->floor() < *form.min->ceil();
    case JsonType::Object:
      if (std::any_of(form.required.begin(), form.required.end(),
                      [&](const std::string& name) { return form.forbidden.contains(name); }))
        return true;
      if (form.max_size && *form.max_size < static_cast<int64_t>(form.required.size())) return true;
      [[fallthrough]];
    case JsonType::String:
    case JsonType::Array:
      return form.max_size && (*form.max_size < form.min_size || *form.max_size < 0);
  }
  return false;
}

}  // namespace colossal::text
