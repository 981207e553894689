#include "colossal/text/grammar/json_schema_forms.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "colossal/base/json_file.h"
#include "colossal/text/grammar/json_schema_keywords.h"

namespace colossal::text {
namespace {

constexpr int kMaxNestedSearches = 20;

bool holds_anything(const Schema& schema) { return schema == true || (schema.is_object() && schema.empty()); }

}  // namespace

/// The state of a value while the schemas that apply to it are read.
struct SchemaForms::State {
  struct Read {
    Literal literal;
    int from;  // index in the trail of the literal that led to this one, or -1
  };
  std::vector<Form> forms = all_types();
  std::vector<Read> trail{};
  size_t done = 0;  // number of trail entries that were read
  Literals seen{};
  std::vector<std::pair<int, std::vector<Choice>>> choices{};  // choices, each with the trail index of the literal that
                                                               // it belongs to

  /// Moves a literal that holds to the front: it may remove all forms, so that no schema has to be excluded.
  void bring_forward() {
    const auto next = trail.begin() + static_cast<std::ptrdiff_t>(done);
    const auto holding = std::find_if(next, trail.end(), [](const Read& one) { return one.literal.holds; });
    if (holding != trail.end()) std::iter_swap(next, holding);
  }

  /// Adds a literal. A literal that leads to itself again describes no finite value, so all forms are removed.
  void add(const Literal& literal, int from) {
    if (seen.insert(literal).second) {
      trail.push_back({literal, from});
      return;
    }
    for (int at = from; at >= 0; at = trail[static_cast<size_t>(at)].from)
      if (trail[static_cast<size_t>(at)].literal == literal) forms.clear();
  }
};

int SchemaForms::number_of(const Schema& schema) {
  const auto [at, is_new] = numbers_.try_emplace(&schema, static_cast<int>(schemas_.size()));
  if (is_new) schemas_.push_back(&schema);
  return at->second;
}

std::vector<Form> SchemaForms::of(const Literals& literals) {
  State state;
  for (const Literal& literal : literals) state.add(literal, -1);
  std::vector<Form> found;
  expand(std::move(state), found, 0);
  return found;
}

void SchemaForms::expand(State state, std::vector<Form>& found, int depth) {
  document_.check(++ways_ <= kMaxChoices, document_.whole(), "anyOf, oneOf, not, if and dependencies make more than ",
                  kMaxChoices, " ways; make the schema simpler, and write a oneOf of many const as one enum");
  for (; state.done < state.trail.size() && !state.forms.empty(); ++state.done) {
    state.bring_forward();
    read(state, static_cast<int>(state.done));
  }
  if (state.forms.empty()) return;
  if (state.choices.empty()) {
    std::move(state.forms.begin(), state.forms.end(), std::back_inserter(found));
    return;
  }
  const auto [from, ways] = std::move(state.choices.back());
  state.choices.pop_back();
  document_.check(depth < kMaxChoiceDepth && found.size() <= static_cast<size_t>(kMaxForms),
                  schema_of(state.trail[static_cast<size_t>(from)].literal.schema),
                  "anyOf, oneOf, not, if and dependencies make more than ", kMaxForms,
                  " ways for one value or are more than ", kMaxChoiceDepth,
                  " within each other; make the schema simpler");
  for (const Choice& way : ways) {
    State next = state;
    if (way.within) restrict_to(next.forms, *way.within);
    for (const Literal& literal : way.literals) next.add(literal, from);
    expand(std::move(next), found, depth + 1);
  }
}

void SchemaForms::restrict_to(std::vector<Form>& forms, const std::vector<Form>& within) const {
  std::vector<Form> kept;
  for (const Form& form : forms)
    for (const Form& other : within)
      if (std::optional<Form> common = both(form, other, document_)) kept.push_back(std::move(*common));
  forms = std::move(kept);
}

void SchemaForms::read(State& state, int at) {
  const Literal literal = state.trail[static_cast<size_t>(at)].literal;
  const Schema& schema = schema_of(literal.schema);
  if (schema.is_boolean()) {
    if (schema.get<bool>() != literal.holds) state.forms.clear();
    return;
  }
  document_.check(schema.is_object(), schema, "a schema must be an object, true or false");
  if (literal.holds) {
    for (const auto& [keyword, value] : schema.items()) read_keyword(state, at, schema, keyword, value);
    return;
  }
  std::vector<Choice> ways;
  std::string others;
  for (const auto& [keyword, value] : schema.items())
    if (!exclude_keyword(ways, schema, keyword, value)) others += (others.empty() ? "\"" : ", \"") + keyword + "\"";
  document_.check(!ways.empty() || others.empty(), schema,
                  "values of this schema must be excluded, by \"not\" or because another branch of \"oneOf\" overlaps "
                  "with it, which is not possible with ",
                  printable(others), "; make the branches differ, by a required member with another \"const\"");
  leaves_out_ |= !others.empty();
  state.choices.emplace_back(at, std::move(ways));
}

void SchemaForms::read_keyword(State& state, int at, const Schema& schema, const std::string& keyword,
                               const Schema& value) {
  if (is_annotation(keyword) || kCompanions.contains(keyword)) return;
  if (keyword == "type") {
    std::vector<Form> within;
    for (const std::string& type : types_of(document_, schema, value)) within.push_back(form_of_type(type));
    return restrict_to(state.forms, within);
  }
  if (keyword == "enum" || keyword == "const")
    return restrict_to(state.forms, forms_of(constants(document_, schema, keyword, value)));
  if (read_applicator(state, at, schema, keyword, value)) return;
  if (const std::optional<Form> form = condition(document_, schema, keyword, value))
    return restrict_to(state.forms, all_types_with(*form));
  if (keyword.starts_with("exclusive") && value.is_boolean()) return;  // draft 4: condition() reads it with the bound
  const std::string meant = misspelled_constraint(keyword);
  document_.check(meant.empty(), schema, "the keyword \"", printable(keyword), "\" is unknown; correct it to \"", meant,
                  "\", or leave it out");
  document_.fail(schema, concat("the keyword \"", printable(keyword),
                                "\" is not supported and could not be enforced; leave it out"));
}

// Reads keywords whose schemas apply to the same value. Keywords about items and members are read with the part.
bool SchemaForms::read_applicator(State& state, int at, const Schema& schema, const std::string& keyword,
                                  const Schema& value) {
  const auto number = [this](const Schema& one) { return number_of(one); };
  const auto choose = [&](std::vector<Choice> ways) { state.choices.emplace_back(at, std::move(ways)); };
  if (keyword == "$ref") {
    state.add({number(document_.target(schema))}, at);
  } else if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf") {
    document_.check(value.is_array() && !value.empty(), schema, keyword, " must be a list of schemas");
    if (keyword == "oneOf") {
      choose(ways_of_one(value));
    } else if (keyword == "allOf") {
      for (const Schema& one : value) state.add({number(one)}, at);
    } else {
      std::vector<Choice> ways;
      for (const Schema& one : value) ways.push_back({.literals = {{number(one)}}});
      choose(std::move(ways));
    }
  } else if (keyword == "not") {
    state.add({number(value), false}, at);
  } else if (keyword == "if") {
    Choice yes{.literals = {{number(value)}}}, no{.literals = {{number(value), false}}};
    if (schema.contains("then")) yes.literals.insert({number(schema["then"])});
    if (schema.contains("else")) no.literals.insert({number(schema["else"])});
    if (schema.contains("then") || schema.contains("else")) choose({yes, no});
  } else if (keyword == "dependentRequired" || keyword == "dependentSchemas" || keyword == "dependencies") {
    document_.check(value.is_object(), schema, keyword, " must be an object");
    for (const auto& [name, what] : value.items()) choose(ways_to_depend(schema, keyword, name, what));
  } else {
    return false;
  }
  return true;
}

/// Returns the two choices of a dependency: the member is absent, or the dependent condition holds.
std::vector<SchemaForms::Choice> SchemaForms::ways_to_depend(const Schema& schema, const std::string& keyword,
                                                             const std::string& name, const Schema& what) {
  Form lacks{.type = JsonType::Object}, has{.type = JsonType::Object};
  lacks.forbidden = {name};
  has.required = {name};
  Choice yes;
  if (what.is_array()) {
    document_.check(keyword != "dependentSchemas", schema, keyword, " must be an object of schemas");
    for (const Schema& one : what) {
      document_.check(one.is_string(), schema, keyword, " must be of lists of names");
      has.required.insert(one.get<std::string>());
    }
  } else {
    document_.check(keyword != "dependentRequired", schema, keyword, " must be an object of lists of names");
    yes.literals = {{number_of(what)}};
  }
  yes.within = {{has}};
  return {{.within = all_types_with(lacks)}, yes};
}

/// Returns one choice per branch: the branch holds, and every other branch that may overlap with it does not.
std::vector<SchemaForms::Choice> SchemaForms::ways_of_one(const Schema& branches) {
  std::vector<Choice> ways;
  for (size_t i = 0; i < branches.size(); ++i) {
    Choice way{.literals = {{number_of(branches[i])}}};
    for (size_t j = 0; j < branches.size(); ++j)
      if (j != i && !are_disjoint(number_of(branches[i]), number_of(branches[j])))
        way.literals.insert({number_of(branches[j]), false});
    ways.push_back(std::move(way));
  }
  return ways;
}

bool SchemaForms::are_disjoint(const Schema& branches) {
  for (size_t i = 0; i < branches.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (!are_disjoint(number_of(branches[j]), number_of(branches[i]))) return false;
  return true;
}

bool SchemaForms::are_disjoint(int a, int b) {
  if (nested_ > kMaxNestedSearches) return false;
  const auto [at, is_new] = disjoint_.try_emplace(std::minmax(a, b), false);  // also false while the search for the
                                                                              // pair is running
  if (!is_new) return at->second;
  ++nested_;
  const bool found = differ_plainly(a, b) || is_empty(Literals{{a}, {b}});
  --nested_;
  return disjoint_[std::minmax(a, b)] = found;
}

// Compares types and constants only. The many branches of a long oneOf then need no second search of their schemas.
bool SchemaForms::differ_plainly(int a, int b) {
  const auto known_forms = [this](int schema) -> const std::vector<std::pair<JsonType, std::set<std::string>>>& {
    const auto [at, is_new] = plain_.try_emplace(schema);
    if (!is_new) return at->second;
    std::vector<Form> forms;
    if (!leaves_none_out([&] { forms = of({{schema}}); })) forms.clear();
    std::vector<std::pair<JsonType, std::set<std::string>>> found;
    for (const Form& form : forms) {
      std::set<std::string> values;
      for (const Schema* value : form.values.value_or(std::vector<const Schema*>()))
        values.insert(document_.canonical(*value));
      found.emplace_back(form.type, std::move(values));
    }
    return plain_[schema] = std::move(found);
  };
  const auto& of_a = known_forms(a);
  const auto& of_b = known_forms(b);
  for (const auto& [type, values] : of_a)
    for (const auto& [other_type, others] : of_b) {
      if (type != other_type) continue;
      if (values.empty() || others.empty()) return false;
      for (const std::string& value : values)
        if (others.contains(value)) return false;
    }
  return !of_a.empty() && !of_b.empty();
}

bool SchemaForms::exclude_keyword(std::vector<Choice>& ways, const Schema& schema, const std::string& keyword,
                                  const Schema& value) {
  if (is_annotation(keyword) || kCompanions.contains(keyword)) return true;
  if (keyword == "type") {
    std::vector<Form> within = all_types();
    bool has_integer = false, has_number = false;
    for (const std::string& type : types_of(document_, schema, value)) {
      has_integer |= type == "integer", has_number |= type == "number";
      if (type != "integer")
        std::erase_if(within, [&](const Form& form) { return form.type == form_of_type(type).type; });
    }
    for (Form& form : within) {
      form.is_typed = true;
      if (has_integer && !has_number && form.type == JsonType::Number) form.is_whole = false;
    }
    if (!within.empty()) ways.push_back({.within = std::move(within)});
    return true;
  }
  if (keyword == "enum" || keyword == "const") {
    const std::vector<const Schema*> values = constants(document_, schema, keyword, value);
    ways.push_back({.within = forms_without(document_, values)});
    // forms_without() is incomplete here: a list leaves out all lists, an object all objects.
    return std::none_of(values.begin(), values.end(), [](const Schema* one) { return one->is_structured(); });
  }
  if (keyword == "required") {
    const std::optional<Form> names = condition(document_, schema, keyword, value);
    for (const std::string& name : names->required) {
      Form form{.type = JsonType::Object, .is_mentioned = true};
      form.forbidden = {name};
      ways.push_back({.within = {{form}}});
    }
    return true;
  }
  if (keyword == "properties") {
    document_.check(value.is_object(), schema, "properties must be an object of schemas");
    bool are_all = true;
    for (const auto& [name, one] : value.items()) {
      if (holds_anything(one)) continue;
      Form form{.type = JsonType::Object, .is_mentioned = true};
      form.required = {name};
      form.members[name] = {{number_of(one), false}};
      if (can_exclude(one))
        ways.push_back({.within = {{form}}});
      else
        are_all = false;
    }
    return are_all;
  }
  if (keyword == "uniqueItems") return value == false;
  if (keyword == "propertyNames") return holds_anything(value);
  if (keyword == "multipleOf" || keyword == "patternProperties" || kItemKeywords.contains(keyword))
    return keyword == "items" && holds_anything(value);
  if (keyword == "additionalProperties") return holds_anything(value);
  if (const std::optional<Form> form = condition(document_, schema, keyword, value)) {
    ways.push_back({.within = {{inverse(*form)}}});
    return true;
  }
  return exclude_applicator(ways, schema, keyword, value);
}

bool SchemaForms::can_exclude(const Schema& schema) {
  if (!schema.is_object()) return true;
  std::vector<Choice> ways;
  for (const auto& [keyword, value] : schema.items()) exclude_keyword(ways, schema, keyword, value);
  return !ways.empty();
}

bool SchemaForms::exclude_applicator(std::vector<Choice>& ways, const Schema& schema, const std::string& keyword,
                                     const Schema& value) {
  const auto literal = [this](const Schema& one, bool holds) { return Literal{number_of(one), holds}; };
  const bool is_list = keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf";
  document_.check(!is_list || (value.is_array() && !value.empty()), schema, keyword, " must be a list of schemas");
  if (keyword == "$ref") {
    ways.push_back({.literals = {{number_of(document_.target(schema)), false}}});
  } else if (keyword == "not") {
    ways.push_back({.literals = {literal(value, true)}});
  } else if (keyword == "allOf") {
    for (const Schema& one : value) ways.push_back({.literals = {literal(one, false)}});
  } else if (keyword == "anyOf" || keyword == "oneOf") {
    Choice none;
    for (const Schema& one : value) none.literals.insert(literal(one, false));
    ways.push_back(std::move(none));
    for (size_t i = 0; i < value.size() && keyword == "oneOf"; ++i)
      for (size_t j = 0; j < i; ++j) ways.push_back({.literals = {literal(value[i], true), literal(value[j], true)}});
  } else if (keyword == "if") {
    if (schema.contains("then")) ways.push_back({.literals = {literal(value, true), literal(schema["then"], false)}});
    if (schema.contains("else")) ways.push_back({.literals = {literal(value, false), literal(schema["else"], false)}});
  } else {
    State unused;  // throws if a keyword is not supported
    read_keyword(unused, -1, schema, keyword, value);
    return !keyword.starts_with("depend");
  }
  return true;
}

}  // namespace colossal::text
