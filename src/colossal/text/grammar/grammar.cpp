#include "colossal/text/grammar/grammar.h"

#include <algorithm>
#include <set>

#include "colossal/base/error.h"

namespace colossal::text {
namespace {

constexpr int kUnknownState = -2;
constexpr int64_t kMapNodeBytes = 48;  // of a std::map: three pointers, a colour, and malloc's share

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

int64_t Grammar::bytes() const {
  auto bytes = static_cast<int64_t>(nodes_.capacity() * sizeof(Node) + rules_.capacity() * sizeof(int));
  for (const Node& node : nodes_) bytes += std::max<int64_t>(32, static_cast<int64_t>(node.next.capacity() * 4 + 16));
  return bytes;
}

std::optional<int> Grammar::endless_rule(int rule) const {
  const std::vector<bool> ends = nodes_that_end(std::bitset<256>().set());
  if (ends[rules_[rule]]) return {};
  // Returns the first rule without an end that the nodes of a rule call, none if there is no such call.
  const auto called = [&](int caller) -> std::optional<int> {
    std::vector<int> open{rules_[caller]};
    std::set<int> seen(open.begin(), open.end());
    for (size_t at = 0; at < open.size(); ++at) {
      const Node& node = nodes_[open[at]];
      if (node.kind == Kind::Call && !ends[rules_[node.rule]]) return node.rule;
      for (const int next : node.next)
        if (seen.insert(next).second) open.push_back(next);
    }
    return {};
  };
  for (std::set<int> seen{rule};;) {
    const std::optional<int> next = called(rule);
    if (!next || !seen.insert(*next).second) return next.value_or(rule);
    rule = *next;
  }
}

void Grammar::prune(int rule, const std::bitset<256>& alphabet) {
  const std::vector<bool> ends = nodes_that_end(alphabet);
  require(ends[rules_[rule]], "grammar", "the grammar must accept a finite text of bytes of the vocabulary");
  for (Node& node : nodes_)
    if (node.kind == Kind::Either) std::erase_if(node.next, [&](int next) { return !ends[next]; });
}

GrammarMachine::GrammarMachine(std::shared_ptr<const Grammar> grammar, int rule, const std::bitset<256>& alphabet)
    : grammar_(std::move(grammar)), alphabet_(alphabet) {
  int64_t steps = 0;
  state_of({{grammar_->rules_[rule], -1}}, steps);
}

GrammarMachine::GrammarMachine(Grammar grammar, int rule, const std::bitset<256>& alphabet)
    : GrammarMachine(
          [&] {
            grammar.prune(rule, alphabet);
            return std::make_shared<const Grammar>(std::move(grammar));
          }(),
          rule, alphabet) {}

int GrammarMachine::pushed(int node, int stack) {
  if (node == Grammar::kReturn) return stack;  // no node to return to: a tail call needs no memory
                                               // to return to
  const auto [at, is_new] = call_ids_.try_emplace({node, stack}, static_cast<int>(calls_.size()));
  if (is_new) {
    calls_.emplace_back(node, stack);
    bytes_ += kMapNodeBytes + static_cast<int64_t>(2 * sizeof(Way));
  }
  return at->second;
}

// Follows `open` until each way reads a byte, the shortest ways first. A rule that calls itself before it reads a byte
// makes endless new ways, of which only the first ones are followed.
int GrammarMachine::state_of(std::vector<Way> open, int64_t& steps) {
  std::set<Way> seen(open.begin(), open.end());
  std::vector<Way> ways;
  bool may_end = false;
  const auto follow = [&](int node, int stack) {
    if (!seen.insert({node, stack}).second) return;
    require(++steps <= kMaxNextSteps, "grammar", "a byte must have at most ", kMaxNextSteps,
            " ways to be read: got more; use fewer alternatives, shorter enums or simpler patterns");
    open.emplace_back(node, stack);
  };
  for (size_t at = 0; at < open.size() && ways.size() < kMaxStateWays; ++at) {
    const auto [id, stack] = open[at];
    const Grammar::Node& node = grammar_->nodes_[id];
    if (node.kind == Grammar::Kind::Byte) {
      ways.emplace_back(id, stack);
    } else if (node.kind == Grammar::Kind::Either) {
      for (const int next : node.next) follow(next, stack);
    } else if (node.kind == Grammar::Kind::Call) {
      follow(grammar_->rules_[node.rule], pushed(node.next[0], stack));
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
  if (is_new) {
    bytes_ += kMapNodeBytes + static_cast<int64_t>(2 * sizeof(State) + 2 * ways.size() * sizeof(Way));
    states_.push_back({std::move(ways), may_end, nullptr});
  }
  return at->second;
}

std::vector<int> GrammarMachine::keep(const std::vector<int>& states) {
  const std::deque<State> old = std::exchange(states_, {});
  const std::vector<Way> old_calls = std::exchange(calls_, {});
  state_ids_.clear();
  call_ids_.clear();
  bytes_ = 0;
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
    states_[state].next = std::make_unique<Table>();
    states_[state].next->state.fill(kUnknownState);
    bytes_ += static_cast<int64_t>(sizeof(Table));
  }
  Table& table = *states_[state].next;
  if (table.state[byte] != kUnknownState) return table.state[byte];
  const std::vector<Way>& ways = states_[state].ways;
  auto steps = static_cast<int64_t>(ways.size() / 64);
  std::vector<Way> open;
  if (alphabet_[byte])
    for (const auto& [id, stack] : ways) {
      const Grammar::Node& node = grammar_->nodes_[id];
      if (node.lo <= byte && byte <= node.hi) open.emplace_back(node.next[0], stack);
    }
  steps += static_cast<int64_t>(open.size());
  const int after = open.empty() ? kDead : state_of(std::move(open), steps);
  table.steps[byte] = static_cast<uint32_t>(steps);
  return table.state[byte] = after;
}

}  // namespace colossal::text
