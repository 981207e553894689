#include "colossal/text/grammar/text_automaton.h"

#include <algorithm>
#include <set>

#include "colossal/base/error.h"

namespace colossal::text {

TextAutomaton::TextAutomaton(AutomatonBudget& budget) : budget_(budget), valid_(add_lengths(0, -1)) {}

int TextAutomaton::add_pattern(const std::string& pattern) {
  const int before = nfa_.add(), after = nfa_.add();
  nfa_.states[0].free.push_back(before);
  for (const int loop : {before, after}) nfa_.states[static_cast<size_t>(loop)].bytes.push_back({{0, 255}, loop});
  add_pattern_way(nfa_, before, pattern, after);
  nfa_.states[static_cast<size_t>(after)].accepts = sets_;
  return sets_++;
}

int TextAutomaton::add_text(const std::string& text) {
  int last = 0;
  for (const char byte : text) {
    const int next = nfa_.add();
    const auto value = static_cast<uint8_t>(byte);
    nfa_.states[static_cast<size_t>(last)].bytes.push_back({{value, value}, next});
    last = next;
  }
  const int end = nfa_.add();
  nfa_.states[static_cast<size_t>(last)].free.push_back(end);
  nfa_.states[static_cast<size_t>(end)].accepts = sets_;
  return sets_++;
}

int TextAutomaton::add_lengths(int64_t min, int64_t max) {
  require(std::max(min, max) < kMaxStates, "json schema", "a length with a pattern must be less than ", kMaxStates,
          ": got ", std::max(min, max));
  int last = nfa_.add();
  nfa_.states[0].free.push_back(last);
  for (int64_t i = 0;; ++i) {
    if (i >= min) nfa_.states[static_cast<size_t>(last)].accepts = sets_;
    if (i == max) break;
    const int next = max < 0 && i >= min ? last : nfa_.add();
    add_code_points(nfa_, last, all_code_points(), next);
    if (next == last) break;
    last = next;
  }
  return sets_++;
}

std::vector<int> TextAutomaton::closed(std::vector<int> open, bool is_start, bool is_end) const {
  std::set<int> seen(open.begin(), open.end());
  const auto follow = [&](const std::vector<int>& states) {
    for (const int state : states)
      if (seen.insert(state).second) open.push_back(state);
  };
  for (size_t i = 0; i < open.size(); ++i) {
    const PatternStates::State& state = nfa_.states[static_cast<size_t>(open[i])];
    follow(state.free);
    if (is_start) follow(state.at_start);
    if (is_end) follow(state.at_end);
  }
  return {seen.begin(), seen.end()};
}

int TextAutomaton::state_of(std::vector<int> open, bool is_start) {
  std::vector<int> members = closed(std::move(open), is_start, false);
  const auto [at, is_new] = ids_.try_emplace({members, is_start}, static_cast<int>(made_.size()));
  if (!is_new) return at->second;
  work_ += members.size();
  require(made_.size() < static_cast<size_t>(kMaxStates) && work_ < kMaxWork, "json schema",
          "patterns, lengths and names of one object or string must be simpler: together they need more than ",
          kMaxStates, " states");
  require(budget_.states > 0 && budget_.work >= members.size(), "json schema",
          "patterns of a schema must be simpler, or fewer: with lengths and names they need more than ",
          AutomatonBudget().states, " states in all");
  --budget_.states;
  budget_.work -= members.size();
  Made made{{}, {}, false};
  made.next.fill(kDead);
  for (const int member : closed(members, is_start, true))
    if (const int set = nfa_.states[static_cast<size_t>(member)].accepts; set == valid_)
      made.is_text = true;
    else if (set >= 0)
      made.sets.push_back(set);
  std::sort(made.sets.begin(), made.sets.end());
  made.sets.erase(std::unique(made.sets.begin(), made.sets.end()), made.sets.end());
  made_.push_back(std::move(made));
  members_.push_back(std::move(members));
  return at->second;
}

void TextAutomaton::build() {
  state_of({0}, true);
  for (size_t state = 0; state < made_.size(); ++state) {
    // All bytes between two neighbouring edges lead to the same states.
    std::set<int> edges{0};
    for (const int member : members_[state])
      for (const auto& [range, next] : nfa_.states[static_cast<size_t>(member)].bytes)
        edges.insert({range[0], range[1] + 1});
    edges.erase(256);
    for (auto edge = edges.begin(); edge != edges.end(); ++edge) {
      std::vector<int> open;
      for (const int member : members_[state])
        for (const auto& [range, next] : nfa_.states[static_cast<size_t>(member)].bytes)
          if (range[0] <= *edge && *edge <= range[1]) open.push_back(next);
      std::sort(open.begin(), open.end());
      open.erase(std::unique(open.begin(), open.end()), open.end());
      const int next = open.empty() ? kDead : state_of(std::move(open), false);
      const int end = std::next(edge) == edges.end() ? 256 : *std::next(edge);
      std::fill(made_[state].next.begin() + *edge, made_[state].next.begin() + end, next);
    }
  }
}

std::vector<int> TextAutomaton::sets_of(const std::string& text) const {
  int state = 0;
  for (const char byte : text)
    if (state != kDead) state = next(state, static_cast<uint8_t>(byte));
  return state == kDead ? std::vector<int>{} : sets(state);
}

}  // namespace colossal::text
