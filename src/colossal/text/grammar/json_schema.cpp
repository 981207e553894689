#include "colossal/text/grammar/json_schema.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/grammar/json_parts.h"
#include "colossal/text/grammar/json_schema_forms.h"
#include "colossal/text/grammar/json_schema_keywords.h"

namespace colossal::text {
namespace {

constexpr char kWhiteSpaceKey[] = "x-white-space";
constexpr int64_t kMaxStep = 1000;  // maximum of step_of() (multipleOf); every remainder needs its own grammar nodes

/// Returns true if the schema has only `keyword` and annotations.
bool has_only(const Schema& schema, const std::string& keyword) {
  return schema.is_object() && std::all_of(schema.items().begin(), schema.items().end(), [&](const auto& member) {
           return member.key() == keyword || is_annotation(member.key());
         });
}

/// Reads the file's choice of white space.
bool is_indented(const SchemaDocument& document) {
  const Schema& whole = document.whole();
  if (!whole.is_object() || !whole.contains(kWhiteSpaceKey)) return false;
  const Schema& value = whole[kWhiteSpaceKey];
  document.check(value == "compact" || value == "indented", whole, kWhiteSpaceKey,
                 " must be \"compact\" or \"indented\": got ", printable(value.dump()));
  return value == "indented";
}

class Compiler {
 public:
  Compiler(const SchemaDocument& document, Grammar& grammar)
      : document_(document), grammar_(grammar), json_(grammar, is_indented(document)), forms_(document) {}

  int compile() {
    const int value = rule_of(forms_.one(document_.whole()));
    // A loop instead of recursion, because schemas may refer to each other in a chain of any length.
    while (!waiting_.empty()) {
      const auto [rule, literals] = std::move(waiting_.back());
      waiting_.pop_back();
      grammar_.set(rule, node_of(literals));
    }
    if (const std::optional<int> endless = grammar_.endless_rule(value))
      document_.fail(schema_of(*endless),
                     "a schema must allow a finite value: got one that excludes all values or requires a value within "
                     "itself without end; make the member or item optional, or add an alternative");
    // The grammar allows a space in front, because a SentencePiece vocabulary may start every text with one.
    const int text = grammar_.declare(), begin = grammar_.call(value, Grammar::kReturn);
    grammar_.set(text, grammar_.either({begin, grammar_.literal(" ", begin)}));
    return text;
  }

 private:
  /// Returns the rule of the values for which all literals hold, the same rule each time.
  int rule_of(const Literals& literals) {
    Literals key;
    for (const Literal& literal : literals) {
      const Literal followed = follow(literal);
      const Schema& schema = forms_.schema_of(followed.schema);
      if (!followed.holds || !(schema == true || has_only(schema, ""))) key.insert(followed);
    }
    const auto [at, is_new] = rules_.try_emplace(key, 0);
    if (is_new) {
      at->second = grammar_.declare();
      waiting_.emplace_back(at->second, key);
    }
    return at->second;
  }

  /// Returns `literal` for the schema at the end of a chain of references that have no conditions of their own.
  Literal follow(Literal literal) {
    std::set<const Schema*> seen;
    const Schema* schema = &forms_.schema_of(literal.schema);
    while (schema->is_object() && schema->contains("$ref") && has_only(*schema, "$ref") && seen.insert(schema).second)
      schema = &document_.target(*schema);
    return {forms_.number_of(*schema), literal.holds};
  }

  /// Returns the schema that a rule was made for; the whole one for rules of parts of values.
  const Schema& schema_of(int rule) {
    for (const auto& [literals, own] : rules_)
      if (own == rule && !literals.empty()) return forms_.schema_of(literals.begin()->schema);
    return document_.whole();
  }

  int nothing() { return grammar_.either({}); }

  int node_of(const Literals& literals) {
    if (literals.empty()) return grammar_.call(json_.any(), Grammar::kReturn);
    if (literals.size() == 1 && literals.begin()->holds) {
      const Schema& schema = forms_.schema_of(literals.begin()->schema);
      for (const char* keyword : {"anyOf", "oneOf"}) {
        if (!has_only(schema, keyword) || !schema.contains(keyword)) continue;
        const Schema& branches = schema[keyword];
        document_.check(branches.is_array() && !branches.empty(), schema, keyword, " must be a list of schemas");
        if (std::string_view(keyword) == "oneOf" && !forms_.are_disjoint(branches)) continue;
        std::vector<int> ways;
        for (const Schema& branch : branches)
          ways.push_back(grammar_.call(rule_of(forms_.one(branch)), Grammar::kReturn));
        return grammar_.either(std::move(ways));
      }
    }
    std::vector<Form> forms = forms_.of(literals);
    // Without "type", the grammar has only the types that keywords are about, if there are any.
    const auto is_wanted = [](const Form& form) { return form.is_typed || form.is_mentioned; };
    if (std::any_of(forms.begin(), forms.end(), is_wanted))
      std::erase_if(forms, [&](const Form& form) { return !is_wanted(form); });
    std::vector<int> ways;
    for (const Form& form : forms) ways.push_back(of_form(form, forms_.schema_of(literals.begin()->schema)));
    return grammar_.either(std::move(ways));
  }

  int of_form(const Form& form, const Schema& schema) {
    const int end = Grammar::kReturn;
    if (form.values) {
      std::vector<int> ways;
      for (const Schema* value : forms_.values_of(form))
        ways.push_back(grammar_.literal(document_.spelled(*value), end));
      return grammar_.either(std::move(ways));
    }
    switch (form.type) {
      case JsonType::Null:
        return grammar_.literal("null", end);
      case JsonType::Boolean: {
        std::vector<int> ways;
        if (form.may_be_true) ways.push_back(grammar_.literal("true", end));
        if (form.may_be_false) ways.push_back(grammar_.literal("false", end));
        return grammar_.either(std::move(ways));
      }
      case JsonType::Number:
        return number(form, schema);
      case JsonType::String:
        return string(form);
      case JsonType::Array:
        return array(form, schema);
      case JsonType::Object:
        return object(form, schema);
    }
    return nothing();
  }

  /// Returns the smallest integer whose multiples are multiples of all divisors.
  int64_t step_of(const Form& form, const Schema& schema) {
    int64_t step = 1;
    for (const Schema* value : form.divisors) {
      const Decimal divisor = document_.decimal(*value);
      const std::optional<int64_t> scaled = divisor.decimals() <= 18 ? divisor.floor(divisor.decimals()) : std::nullopt;
      int64_t own = scaled.value_or(kMaxStep + 1), unit = 1;
      for (int64_t i = 0; i < divisor.decimals() && scaled; ++i) unit *= 10;
      own /= std::gcd(own, unit);
      document_.check(own <= kMaxStep && std::lcm(own, step) <= kMaxStep, schema,
                      "multipleOf is supported if its integer multiples are those of an integer of at most ", kMaxStep,
                      ": got ", document_.spelled(*value));
      step = std::lcm(own, step);
    }
    return step;
  }

  int number(const Form& form, const Schema& schema) {
    if (form.is_whole && form.is_fraction && !form.min && !form.max && form.divisors.empty())
      return json_.number(Grammar::kReturn);
    JsonParts::Range range{.min = form.min,
                           .max = form.max,
                           .excludes_min = form.excludes_min,
                           .excludes_max = form.excludes_max,
                           .step = step_of(form, schema),
                           .is_whole = form.is_whole,
                           .is_fraction = form.is_fraction && form.divisors.empty()};
    return json_.range(range, Grammar::kReturn);
  }

  /// Sets of an automaton that together describe the strings of a form.
  struct StringSets {
    std::vector<int> wanted{}, unwanted{};
    std::optional<std::vector<int>> values{};  // one of them must hold
    bool hold(const std::vector<int>& found) const {
      const auto has = [&](int set) { return std::find(found.begin(), found.end(), set) != found.end(); };
      return std::all_of(wanted.begin(), wanted.end(), has) && std::none_of(unwanted.begin(), unwanted.end(), has) &&
             (!values || std::any_of(values->begin(), values->end(), has));
    }
  };

  StringSets sets_of(const Form& form, TextAutomaton& texts) {
    StringSets sets;
    if (form.values) {
      sets.values.emplace();
      for (const Schema* value : forms_.values_of(form))
        sets.values->push_back(texts.add_text(value->get<std::string>()));
      return sets;  // values_of() has checked all other conditions
    }
    if (form.min_size > 0 || form.max_size)
      sets.wanted.push_back(texts.add_lengths(form.min_size, form.max_size.value_or(-1)));
    for (const std::string& pattern : form.patterns) sets.wanted.push_back(texts.add_pattern(pattern));
    for (const std::string& pattern : form.forbidden_patterns) sets.unwanted.push_back(texts.add_pattern(pattern));
    for (const std::string& text : form.forbidden_texts) sets.unwanted.push_back(texts.add_text(text));
    return sets;
  }

  int string(const Form& form) {
    const int end = Grammar::kReturn;
    if (form.patterns.empty() && form.forbidden_patterns.empty() && form.forbidden_texts.empty())
      return json_.string(form.min_size, form.max_size, end);
    TextAutomaton texts(forms_.automaton_budget());
    const StringSets sets = sets_of(form, texts);
    texts.build();
    return json_.string_of(texts, [&](const std::vector<int>& found) { return sets.hold(found); }, end);
  }

  /// Returns a list of different constants, written in the order of the file.
  int unique_array(const Form& form, const Schema& schema) {
    const std::optional<std::vector<std::string>> values = forms_.spelled_values(forms_.item(form, 0));
    const auto lists_items = [](const Schema* part) {
      return part->contains("prefixItems") || (part->contains("items") && (*part)["items"].is_array());
    };
    document_.check(
        values && std::none_of(form.parts.begin(), form.parts.end(), lists_items), schema,
        "uniqueItems is supported for items whose values \"enum\", \"const\", booleans or null name, and with "
        "\"maxItems\" of at most 1; leave it out, and check the items yourself");
    const int64_t min = form.min_size;
    const int64_t max = std::min(form.max_size.value_or(min), static_cast<int64_t>(values->size()));
    const int64_t counted = std::max<int64_t>(form.max_size ? max : min, 1);
    std::vector<int> after;  // nodes indexed by the number of items written so far, up to the last count that matters
    const int close = json_.padding(grammar_.literal("]", Grammar::kReturn));
    for (int64_t count = 0; count <= counted; ++count) after.push_back(count < min ? nothing() : close);
    for (size_t i = values->size(); i-- > 0;) {
      std::vector<int> before;
      for (int64_t count = 0; count <= counted; ++count) {
        std::vector<int> ways{after[static_cast<size_t>(count)]};
        if (count < counted || !form.max_size) {
          const int item = grammar_.literal((*values)[i], after[static_cast<size_t>(std::min(count + 1, counted))]);
          ways.push_back(count > 0 ? grammar_.literal(",", json_.space(item)) : json_.padding(item));
        }
        before.push_back(grammar_.either(std::move(ways)));
      }
      after = std::move(before);
    }
    return grammar_.literal("[", after[0]);
  }

  int array(const Form& form, const Schema& schema) {
    if (form.is_unique && form.max_size.value_or(2) > 1) return unique_array(form, schema);
    size_t front = 0;
    bool says_rest = form.parts.empty();
    for (const Schema* part : form.parts) {
      const bool is_list = part->contains("items") && (*part)["items"].is_array();
      if (part->contains("prefixItems")) front = std::max(front, (*part)["prefixItems"].size());
      if (is_list) front = std::max(front, (*part)["items"].size());
      says_rest |= is_list ? part->contains("additionalItems") : part->contains("items");
    }
    const auto min = static_cast<size_t>(form.min_size);
    const bool has_rest = says_rest || front == 0 || min > front;
    const int rest = has_rest ? rule_of(forms_.item(form, front)) : grammar_.declare();
    const int close = json_.padding(grammar_.literal("]", Grammar::kReturn));
    const size_t counted = form.max_size ? static_cast<size_t>(*form.max_size) : std::max(front, min);
    int node = close;  // the node after `i` items
    if (!form.max_size) {
      const int more = grammar_.reserve(), item = grammar_.call(rest, more);
      grammar_.define(more, {close, grammar_.literal(",", json_.space(item))});
      node = counted > 0 ? more : grammar_.either({close, json_.padding(item)});
    }
    if (min > counted) return nothing();
    for (size_t i = counted; i-- > 0;) {
      const int item = grammar_.call(i < front ? rule_of(forms_.item(form, i)) : rest, node);
      std::vector<int> ways{i > 0 ? grammar_.literal(",", json_.space(item)) : json_.padding(item)};
      if (i >= min) ways.push_back(close);
      node = grammar_.either(ways);
    }
    return grammar_.literal("[", node);
  }

  int object(const Form& form, const Schema& schema) {
    ObjectGrammar object{.min = form.min_size, .max = form.max_size};
    std::set<std::string> named;
    const auto add = [&](const std::string& name) {
      if (!named.insert(name).second || form.forbidden.contains(name) || !forms_.allows_name(form, name)) return;
      object.members.push_back({name, rule_of(forms_.member(form, name)), form.required.contains(name)});
    };
    bool is_open = false, has_properties = false;
    std::vector<std::string> patterns;
    for (const Schema* part : form.parts) {
      is_open |= part->contains("additionalProperties");
      if (const auto at = part->find("properties"); at != part->end())
        for (const auto& [name, schema] : at->items()) has_properties = true, add(name);
      if (const auto at = part->find("patternProperties"); at != part->end())
        for (const auto& [pattern, schema] : at->items())
          if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end()) patterns.push_back(pattern);
    }
    for (const auto& [name, literals] : form.members) add(name);
    for (const std::string& name : form.required) {
      if (!forms_.allows_name(form, name)) return nothing();
      add(name);
    }
    is_open |= patterns.empty() && !has_properties && object.members.empty();
    named.insert(form.forbidden.begin(), form.forbidden.end());
    object.extra = extra_members(form, named, patterns, is_open);
    const auto countable = static_cast<int64_t>(object.members.size()) + (object.extra ? 1 : 0);
    document_.check(form.min_size <= std::min<int64_t>(countable, 2000), schema,
                    "minProperties must be at most the number of named members and one more, because other names may "
                    "be equal: got ",
                    form.min_size, ", at most ", countable);
    return object_node(grammar_, json_, object);
  }

  /// Returns the rule of a member (name and value) whose name is not in `named`; none if no such member is allowed.
  std::optional<int> extra_members(const Form& form, const std::set<std::string>& named,
                                   const std::vector<std::string>& patterns, bool is_open) {
    if (patterns.empty() && (!is_open || forms_.is_empty(extra_literals(form, {}, patterns)))) return {};
    const auto member = [&](const Literals& literals) {
      return grammar_.literal(":", json_.space(grammar_.call(rule_of(literals), Grammar::kReturn)));
    };
    const int extra = grammar_.declare();
    const auto limits_names = [](const Schema* part) { return part->contains("propertyNames"); };
    if (patterns.empty() && named.empty() && std::none_of(form.parts.begin(), form.parts.end(), limits_names)) {
      grammar_.set(extra, json_.string(0, {}, member(extra_literals(form, {}, patterns))));
      return extra;
    }
    TextAutomaton names(forms_.automaton_budget());
    std::vector<int> sets;  // numbers of the patterns' sets in `names`
    for (const std::string& pattern : patterns) sets.push_back(names.add_pattern(pattern));
    StringSets others;
    for (const std::string& name : named) others.unwanted.push_back(names.add_text(name));
    std::vector<std::vector<StringSets>> limits;  // for each propertyNames its alternatives
    for (const Schema* part : form.parts) {
      if (!limits_names(part)) continue;
      limits.emplace_back();
      for (const Form& names_form : forms_.of(forms_.one((*part)["propertyNames"])))
        if (names_form.type == JsonType::String) limits.back().push_back(sets_of(names_form, names));
    }
    names.build();
    // Returns the patterns that a name matches, by the sets that contain it; no value if the name is not allowed.
    const auto kind_of = [&](const std::vector<int>& found) -> std::optional<std::set<std::string>> {
      const auto holds = [&](const StringSets& own) { return own.hold(found); };
      const auto is_met = [&](const auto& ways) { return std::any_of(ways.begin(), ways.end(), holds); };
      std::set<std::string> matched;
      for (size_t i = 0; i < patterns.size(); ++i)
        if (std::find(found.begin(), found.end(), sets[i]) != found.end()) matched.insert(patterns[i]);
      if (!others.hold(found) || (!is_open && matched.empty())) return {};
      if (!std::all_of(limits.begin(), limits.end(), is_met)) return {};
      return matched;
    };
    std::set<std::set<std::string>> kinds;
    for (size_t state = 0; state < names.states(); ++state)
      if (names.is_text(static_cast<int>(state)))
        if (const auto kind = kind_of(names.sets(static_cast<int>(state)))) kinds.insert(*kind);
    std::vector<int> ways;
    for (const std::set<std::string>& kind : kinds) {
      const Literals literals = extra_literals(form, kind, patterns);
      if (forms_.is_empty(literals)) continue;
      const auto is_kind = [&](const std::vector<int>& found) { return kind_of(found) == kind; };
      ways.push_back(json_.string_of(names, is_kind, member(literals)));
    }
    grammar_.set(extra, grammar_.either(std::move(ways)));
    return extra;
  }

  /// Returns the conditions on a member that is in no "properties" and whose name matches the patterns in `matched`.
  Literals extra_literals(const Form& form, const std::set<std::string>& matched,
                          const std::vector<std::string>& patterns) {
    Literals literals;
    for (const Schema* part : form.parts) {
      bool is_known = false;
      for (const std::string& pattern : patterns)
        if (matched.contains(pattern) && part->contains("patternProperties") &&
            (*part)["patternProperties"].contains(pattern)) {
          literals.insert({forms_.number_of((*part)["patternProperties"][pattern])});
          is_known = true;
        }
      if (!is_known && part->contains("additionalProperties"))
        literals.insert({forms_.number_of((*part)["additionalProperties"])});
    }
    return literals;
  }

  const SchemaDocument& document_;
  Grammar& grammar_;
  JsonParts json_;
  SchemaForms forms_;
  std::map<Literals, int> rules_;
  std::vector<std::pair<int, Literals>> waiting_;
};

}  // namespace

JsonGrammar json_grammar(std::string_view schema, const std::string& name) {
  const SchemaDocument document(schema, name);
  JsonGrammar made;
  made.rule = Compiler(document, made.grammar).compile();
  return made;
}

}  // namespace colossal::text
