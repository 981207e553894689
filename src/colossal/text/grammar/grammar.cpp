#include "colossal/text/grammar/grammar.h"

#include <algorithm>
#include <set>

#include "colossal/base/error.h"

namespace colossal::text {
namespace {

constexpr int kUnknownState = -2;

}  // namespace

int Grammar::add(Node node) {
  require(nodes_.size() < static_cast<size_t>(kMaxNodes), "grammar", "a grammar must have at most ", kMaxNodes,
          " parts; shorten its counts and lists");
  nodes_.push_back(std::move(node));
  return static_cast<int>(nodes_.size()) - 1;
}

int Grammar::literal(std::string_view bytes, int next) {
  for (size_t i = bytes.size(); i-- > 0;) {
    const auto value = static_cast<uint8_t>(bytes[i]);
    next = byte(value, value, next);
  }
  return next;
}

int Grammar::declare() {
  rules_.push_back(reserve());  // accepts no text until set() is called
  return static_cast<int>(rules_.size()) - 1;
}

// Works backwards from the ends. A node is examined again each time one of its successors is found to reach an end.
std::vector<bool> Grammar::nodes_that_end(const std::bitset<256>& alphabet) const {
  std::vector<std::vector<int>> waiting(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (const int next : nodes_[i].next) waiting[next].push_back(static_cast<int>(i));
    if (nodes_[i].kind == Kind::Call) waiting[rules_[nodes_[i].rule]].push_back(static_cast<int>(i));
  }
  std::vector<bool> ends(nodes_.size(), false);
  const auto ends_now = [&](const Node& node) {
    const auto known = [&](int next) { return ends[next]; };
    if (node.kind == Kind::Return) return true;
    if (!std::any_of(node.next.begin(), node.next.end(), known)) return false;
    if (node.kind == Kind::Call) return static_cast<bool>(ends[rules_[node.rule]]);
    if (node.kind == Kind::Either) return true;
    for (int value = node.lo; value <= node.hi; ++value)
      if (alphabet[value]) return true;
    return false;
  };
  std::vector<int> found{kReturn};
  ends[kReturn] = true;
  while (!found.empty()) {
    const int last = found.back();
    found.pop_back();
    for (const int node : waiting[last])
      if (!ends[node] && ends_now(nodes_[node])) ends[node] = true, found.push_back(node);
  }
  return ends;
}

GrammarMachine::GrammarMachine(Grammar grammar, int rule, const std::bitset<256>& alphabet)
    : grammar_(std::move(grammar)), alphabet_(alphabet) {
  const std::vector<bool> ends = grammar_.nodes_that_end(alphabet);
  const int first = grammar_.rules_[rule];
  require(ends[first], "grammar", "the grammar must accept a finite text of bytes of the vocabulary");
  for (Grammar::Node& node : grammar_.nodes_)
    if (node.kind == Grammar::Kind::Either)
      node.next.erase(std::remove_if(node.next.begin(), node.next.end(), [&](int next) { return !ends[next]; }),
                      node.next.end());
  state_of({{first, -1}});
}

int GrammarMachine::pushed(int node, int stack) {
  if (node == Grammar::kReturn) return stack;  // no node to return to: a tail call needs no memory
                   // to return to
  const auto [at, is_new] = call_ids_.try_emplace({node, stack}, static_cast<int>(calls_.size()));
  if (is_new) calls_.emplace_back(node, stack);
  return at->second;
}

// Follows `open` until each way reads a byte, the shortest ways first. A rule that calls itself before it reads a byte
// makes endless new ways, of which only the first ones are followed.
int GrammarMachine::state_of(std::vector<Way> open) {
  std::set<Way> seen(open.begin(), open.end());
  std::vector<Way> ways;
  bool may_end = false;
  const auto follow = [&](int node, int stack) {
    if (seen.size() < static_cast<size_t>(2 * Grammar::kMaxNodes) && seen.insert({node, stack}).second)
      open.emplace_back(node, stack);
  };
  for (size_t at = 0; at < open.size() && ways.size() < kMaxStateWays; ++at) {
    const auto [id, stack] = open[at];
    const Grammar::Node& node = grammar_.nodes_[id];
    if (node.kind == Grammar::Kind::Byte) {
      ways.emplace_back(id, stack);
    } else if (node.kind == Grammar::Kind::Either) {
      for (const int next : node.next) follow(next, stack);
    } else if (node.kind == Grammar::Kind::Call) {
      follow(grammar_.rules_[node.rule], pushed(node.next[0], stack));
    } else if (stack < 0) {
      may_end = true;
    } else {
      follow(calls_[stack].first, calls_[stack].second);
    }
  }
  return ways.empty() && !may_end ? kDead : interned(std::move(ways), may_end);
}

int GrammarMachine::interned(std::vector<Way> ways, bool may_end) {
  std::sort(ways.begin(), ways.end());
  const auto [at, is_new] = state_ids_.try_emplace({ways, may_end}, static_cast<int>(states_.size()));
  if (is_new) states_.push_back({std::move(ways), may_end, nullptr});
  return at->second;
}

std::vector<int> GrammarMachine::keep(const std::vector<int>& states) {
  const std::deque<State> old = std::exchange(states_, {});
  const std::vector<Way> old_calls = std::exchange(calls_, {});
  state_ids_.clear();
  call_ids_.clear();
  std::vector<int> kept{0};
  kept.insert(kept.end(), states.begin(), states.end());
  // A call is created after the calls around it, so ascending ids visit outer calls first.
  std::map<int, int> calls;
  for (const int state : kept)
    for (const Way& way : old[state].ways)
      for (int call = way.second; call >= 0 && calls.emplace(call, -1).second;) call = old_calls[call].second;
  for (auto& [call, moved] : calls) {
    const auto [node, around] = old_calls[call];
    moved = pushed(node, around < 0 ? around : calls.at(around));
  }
  std::vector<int> ids;
  for (const int state : kept) {
    std::vector<Way> ways = old[state].ways;
    for (Way& way : ways)
      if (way.second >= 0) way.second = calls.at(way.second);
    ids.push_back(interned(std::move(ways), old[state].may_end));
  }
  ids.erase(ids.begin());
  return ids;
}

int GrammarMachine::next(int state, uint8_t byte) {
  if (!states_[state].next) {
    states_[state].next = std::make_unique<std::array<int, 256>>();
    states_[state].next->fill(kUnknownState);
  }
  if ((*states_[state].next)[byte] != kUnknownState) return (*states_[state].next)[byte];
  std::vector<Way> open;
  if (alphabet_[byte])
    for (const auto& [id, stack] : states_[state].ways) {
      const Grammar::Node& node = grammar_.nodes_[id];
      if (node.lo <= byte && byte <= node.hi) open.emplace_back(node.next[0], stack);
    }
  return (*states_[state].next)[byte] = open.empty() ? kDead : state_of(std::move(open));
}

}  // namespace colossal::text
