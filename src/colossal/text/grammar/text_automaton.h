// Sets of texts, given by regular expressions, as one deterministic automaton over bytes of UTF-8.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace colossal::text {

/// A nondeterministic automaton over bytes. State 0 is the start.
struct PatternStates {
  struct State {
    std::vector<std::pair<std::array<uint8_t, 2>, int>> bytes{};  ///< a range of bytes, and the state after it
    std::vector<int> free{};                                      ///< states that are reached without a byte
    std::vector<int> at_start{}, at_end{};                        ///< states reached by ^ at the start of the text, and
                                                                  ///< by $ at its end
    int accepts = -1;                                             ///< number of the text set that accepts here; -1 =
                                                                  ///< none
  };
  std::vector<State> states{1};

  int add() {
    states.emplace_back();
    return static_cast<int>(states.size()) - 1;
  }
};

/// What the automata of one schema may still use together. They take about a second at the bound.
struct AutomatonBudget {
  size_t states = 50000;
  size_t work = 5000000;  ///< total number of pattern states in all states
};

/// Several numbered sets of texts as one automaton. Each state knows which sets contain the text so far.
class TextAutomaton {
 public:
  static constexpr int kMaxStates = 20000;
  static constexpr size_t kMaxWork = 2000000;  ///< limit on the total number of pattern states in all states of the
                                               ///< automaton
  static constexpr int kDead = -1;

  /// build() takes from the budget, which must outlive the automaton.
  explicit TextAutomaton(AutomatonBudget& budget);
  /// Adds the texts in which an ECMA-262 regular expression (with the flag u) finds a match. Returns the set's number.
  /// Errors ("json schema"): an expression that is malformed or has lookaround, references, \b or \p.
  int add_pattern(const std::string& pattern);
  /// Adds a single text. Returns the set's number.
  int add_text(const std::string& text);
  /// Adds the texts of at least `min` and at most `max` characters (-1 = no limit). Returns the set's number.
  int add_lengths(int64_t min, int64_t max);

  /// Builds the automaton after all sets were added.
  /// Errors ("json schema"): more than kMaxStates states or kMaxWork, or more than the budget has.
  void build();
  size_t states() const { return made_.size(); }
  /// Returns the state after a byte, or kDead if no text of a set continues so. The first state is 0.
  int next(int state, uint8_t byte) const { return made_[static_cast<size_t>(state)].next[byte]; }
  /// Returns true if the text that leads to the state is valid UTF-8. sets() returns the sets that contain the text, in
  /// ascending order. It is empty if the text is not valid UTF-8 or no set contains it.
  bool is_text(int state) const { return made_[static_cast<size_t>(state)].is_text; }
  const std::vector<int>& sets(int state) const { return made_[static_cast<size_t>(state)].sets; }
  /// Returns the sets that contain `text`.
  std::vector<int> sets_of(const std::string& text) const;

 private:
  struct Made {
    std::array<int, 256> next;
    std::vector<int> sets;
    bool is_text;
  };
  std::vector<int> closed(std::vector<int> open, bool is_start, bool is_end) const;
  int state_of(std::vector<int> open, bool is_start);

  AutomatonBudget& budget_;
  PatternStates nfa_;
  int sets_ = 0, valid_;
  size_t work_ = 0;
  std::vector<Made> made_;
  std::vector<std::vector<int>> members_;  // pattern states of each state of the automaton
  std::map<std::pair<std::vector<int>, bool>, int> ids_;
};

// The parts of a pattern (pattern_parser.cpp parses ECMA-262 regular expressions to nondeterministic automata).

using CodePoints = std::vector<std::pair<uint32_t, uint32_t>>;  ///< ranges, both ends included

/// Returns all code points except surrogates.
CodePoints all_code_points();
/// Adds a way from state `from` to state `to` over the UTF-8 of any of the code points.
void add_code_points(PatternStates& states, int from, const CodePoints& points, int to);
/// Adds a way over `pattern` (no implied ^ or $). Errors: as TextAutomaton::add_pattern().
void add_pattern_way(PatternStates& states, int from, const std::string& pattern, int to);

}  // namespace colossal::text
