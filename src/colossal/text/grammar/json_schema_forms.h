// The values that a set of schemas allows together, type by type.
//
// The keywords of a schema are conditions that must all hold. anyOf, oneOf, not, if and the dependencies are choices
// between such conditions. SchemaForms expands the choices: each Form is a type with the conditions of one combination.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "colossal/text/grammar/json_form.h"
#include "colossal/text/grammar/json_schema_document.h"
#include "colossal/text/grammar/text_automaton.h"

namespace colossal::text {

/// A solver for the schemas of one document, which must outlive it. It caches its results.
class SchemaForms {
 public:
  static constexpr int kMaxForms = 2000;
  static constexpr int kMaxChoices = 200000;   ///< maximum number of choices that are examined per file
  static constexpr int kMaxChoiceDepth = 100;  ///< maximum nesting depth of choices

  explicit SchemaForms(const SchemaDocument& document) : document_(document) {}

  /// Returns the number of a schema, under which literals refer to it.
  int number_of(const Schema& schema);
  const Schema& schema_of(int number) const { return *schemas_[static_cast<size_t>(number)]; }
  /// Returns the condition that the schema holds.
  Literals one(const Schema& schema) { return {{number_of(schema)}}; }

  /// Returns the forms of all values for which the literals hold; some forms may have no value. The values of a schema
  /// that must not hold may be excluded only approximately. The forms then allow too few values, never too many, and
  /// leaves_out_ is set.
  /// Errors ("json schema"): a keyword that is not supported or has a wrong value; too many choices; branches of oneOf
  ///                         that overlap so that the overlap cannot be excluded.
  std::vector<Form> of(const Literals& literals);
  /// Returns true if it is certain that the literals hold for no value. `depth` counts the items and members around the
  /// value; the search stops at a fixed depth and then returns false.
  bool is_empty(const Literals& literals, int depth = 0);
  /// Returns the values that the form names and that meet its conditions.
  std::vector<const Schema*> values_of(const Form& form);
  /// Return true if the form, or at least one form of the literals, allows a value of the file.
  bool allows(const Form& form, const Schema& value);
  bool allows(const Literals& literals, const Schema& value);
  /// Returns true if it is certain that no value matches two branches of a oneOf.
  bool are_disjoint(const Schema& branches);

  /// Return the conditions that the form's parts put on the item at `index`, and on the member `name`.
  Literals item(const Form& form, size_t index);
  Literals member(const Form& form, const std::string& name);
  /// Returns true if the form's parts allow a member of this name (propertyNames).
  bool allows_name(const Form& form, const std::string& name);
  /// Returns the values that the literals allow, in the order of the file, each once; no value if there may be others
  /// than constants.
  std::optional<std::vector<std::string>> spelled_values(const Literals& literals);

  /// Returns the budget of all automata for the document.
  AutomatonBudget& automaton_budget() { return automaton_budget_; }

 private:
  /// One way to meet a condition: literals that must all hold, and forms of which one must hold.
  struct Choice {
    Literals literals{};
    std::optional<std::vector<Form>> within{};
  };
  struct State;
  void expand(State state, std::vector<Form>& found, int depth);
  void read(State& state, int at);
  void read_keyword(State& state, int at, const Schema& schema, const std::string& keyword, const Schema& value);
  bool read_applicator(State& state, int at, const Schema& schema, const std::string& keyword, const Schema& value);
  std::vector<Choice> ways_to_depend(const Schema& schema, const std::string& keyword, const std::string& name,
                                     const Schema& what);
  std::vector<Choice> ways_of_one(const Schema& branches);
  bool are_disjoint(int a, int b);
  /// Runs a search and returns true if it left no values out. An outer search does not count what an inner one left
  /// out.
  template <class Search>
  bool leaves_none_out(const Search& search) {
    const bool before = std::exchange(leaves_out_, false);
    search();
    return !std::exchange(leaves_out_, before);
  }
  bool is_empty(const Form& form, int depth);
  bool differ_plainly(int a, int b);
  /// Adds the ways in which a value fails a keyword. Returns false if there may be other ways.
  bool exclude_keyword(std::vector<Choice>& ways, const Schema& schema, const std::string& keyword,
                       const Schema& value);
  bool can_exclude(const Schema& schema);
  bool exclude_applicator(std::vector<Choice>& ways, const Schema& schema, const std::string& keyword,
                          const Schema& value);
  void restrict_to(std::vector<Form>& forms, const std::vector<Form>& within) const;
  bool allows_number(const Form& form, const Schema& value);
  bool allows_string(const Form& form, const std::string& text);
  bool matches(const std::string& pattern, const std::string& text);

  const SchemaDocument& document_;
  std::vector<const Schema*> schemas_;
  std::map<const Schema*, int> numbers_;
  std::map<std::pair<int, int>, bool> disjoint_;
  /// Types and constants of each schema; the list is empty if they are not known completely.
  std::map<int, std::vector<std::pair<JsonType, std::set<std::string>>>> plain_;
  AutomatonBudget automaton_budget_;
  std::map<std::string, std::unique_ptr<TextAutomaton>> matchers_;
  int ways_ = 0;             // number of choices examined so far
  int nested_ = 0;           // depth of nested searches for overlaps
  bool leaves_out_ = false;  // true if the current search left values out
};

}  // namespace colossal::text
