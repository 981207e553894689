// Grammars: rules over bytes that may call each other, and a machine that matches a text against them byte by byte.
//
//   text::Grammar grammar;
//   const int list = grammar.declare();                                      // list = "[" (list ("," list)*)? "]"
//   const int more = grammar.reserve();
//   const int close = grammar.literal("]", Grammar::kReturn);
//   grammar.define(more, {close, grammar.literal(",", grammar.call(list, more))});
//   grammar.set(list, grammar.literal("[", grammar.either({close, grammar.call(list, more)})));
//   text::GrammarMachine machine(grammar, list);
//   machine.next(machine.start(), '[');
#pragma once
#include <array>
#include <bitset>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace colossal::text {

/// A network of nodes. Each node is created after its successors; loops are closed with reserve() and define().
/// Errors ("grammar"): more than kMaxNodes nodes.
class Grammar {
 public:
  static constexpr int kReturn = 0;  ///< the node that ends a rule
  static constexpr int kMaxNodes = 500000;

  Grammar() : nodes_(1) {}
  /// Matches one byte of lo..hi, then `next`.
  int byte(uint8_t lo, uint8_t hi, int next) { return add({.kind = Kind::Byte, .lo = lo, .hi = hi, .next = {next}}); }
  int literal(std::string_view bytes, int next);
  /// Matches any of `nodes`; an empty list matches no text.
  int either(std::vector<int> nodes) { return add({.kind = Kind::Either, .next = std::move(nodes)}); }
  /// Matches the rule, then `next`.
  int call(int rule, int next) { return add({.kind = Kind::Call, .rule = rule, .next = {next}}); }
  /// Creates an either() whose alternatives define() sets later.
  int reserve() { return either({}); }
  void define(int reserved, std::vector<int> nodes) { nodes_[reserved].next = std::move(nodes); }
  /// Creates a rule, which may be called before set() defines it.
  int declare();
  void set(int rule, int node) { rules_[rule] = node; }
  /// Returns the number of bytes that the nodes take.
  int64_t bytes() const;
  /// Returns a rule that keeps `rule` from matching any finite text: one that calls itself on every way, or has no way.
  /// It is `rule` or one that it calls. Returns none if `rule` matches a finite text.
  std::optional<int> endless_rule(int rule) const;
  /// Removes the alternatives from which no text of bytes of `alphabet` leads to the end of their rule.
  /// Errors ("grammar"): `rule` matches no text of bytes of `alphabet`.
  void prune(int rule, const std::bitset<256>& alphabet);

 private:
  friend class GrammarMachine;
  enum class Kind { Return, Byte, Either, Call };
  struct Node {
    Kind kind = Kind::Return;
    uint8_t lo = 0, hi = 0;
    int rule = -1;
    std::vector<int> next{};
  };
  int add(Node node);
  /// Returns for each node whether a text of bytes of `alphabet` leads from it to the end of its rule.
  std::vector<bool> nodes_that_end(const std::bitset<256>& alphabet) const;

  std::vector<Node> nodes_;
  std::vector<int> rules_;  // the first node of each rule
};

/// A deterministic matcher of a grammar. A state is the set of all ways in which the grammar can read the text so far;
/// equal sets are one state. From every state that next() returns, a text of the alphabet leads to an accepted end:
/// ways without one are removed in advance.
/// Cost: next() is a table look-up if it was called for this state and byte before. Otherwise it takes steps(), of
///       about 0.2 microseconds each.
/// Memory: bytes(). A state on which next() was called takes 2 KiB. The caller frees states by keep().
/// Thread safety: none. Machines of several threads may share a grammar.
class GrammarMachine {
 public:
  static constexpr int kDead = -1;
  /// Maximum number of ways in a state; further ways are not followed. Only grammars that describe one text in very
  /// many ways reach the limit. The texts that the machine still accepts belong to the grammar.
  static constexpr size_t kMaxStateWays = 4096;
  /// Maximum number of steps of one next(), and of the start.
  static constexpr int64_t kMaxNextSteps = 1 << 16;

  /// `grammar` was pruned for `rule` and `alphabet` (Grammar::prune).
  /// Errors ("grammar"): the start takes more than kMaxNextSteps steps.
  GrammarMachine(std::shared_ptr<const Grammar> grammar, int rule,
                 const std::bitset<256>& alphabet = std::bitset<256>().set());
  /// Prunes the grammar first. Errors ("grammar"): the rule matches no text of bytes of `alphabet`; as above.
  GrammarMachine(Grammar grammar, int rule, const std::bitset<256>& alphabet = std::bitset<256>().set());
  int start() const { return 0; }
  /// Returns the state after one more byte; kDead = no text of the grammar starts this way.
  /// Errors ("grammar"): more than kMaxNextSteps steps. The machine stays usable.
  int next(int state, uint8_t byte);
  /// Returns how many steps the first next(state, byte) took; next() must have been called. A step follows a way to a
  /// node, or compares 64 ways with the byte. Two machines of one grammar count the same for the same text, whatever
  /// they did before, unless a state has kMaxStateWays ways.
  int64_t steps(int state, uint8_t byte) const { return states_[state].next->steps[byte]; }
  /// Returns true if the text so far is a complete text of the grammar.
  bool may_end(int state) const { return states_[state].may_end; }
  size_t states() const { return states_.size(); }
  /// Returns the number of bytes that states and pending calls take, without the grammar.
  int64_t bytes() const { return bytes_; }
  /// Frees all states except the start and `states`. Returns the new ids of `states`, in their order; other ids become
  /// invalid. The kept states allow the same texts as before.
  std::vector<int> keep(const std::vector<int>& states);

 private:
  using Way = std::pair<int, int>;  // a node that reads a byte, and the id of its innermost pending call (-1 = none)
  struct Table {
    std::array<int, 256> state;       // state after each byte
    std::array<uint32_t, 256> steps;  // steps that this took
  };
  struct State {
    std::vector<Way> ways;
    bool may_end;
    std::unique_ptr<Table> next;  // null until the first call of next()
  };
  int state_of(std::vector<Way> open, int64_t& steps);
  int interned(std::vector<Way> ways, bool may_end);
  int pushed(int node, int stack);

  std::shared_ptr<const Grammar> grammar_;
  std::bitset<256> alphabet_;
  std::vector<Way> calls_;  // each call: the node after it, and the id of the call around it
  std::map<Way, int> call_ids_;
  std::deque<State> states_;
  std::map<std::pair<std::vector<Way>, bool>, int> state_ids_;
  int64_t bytes_ = 0;
};

}  // namespace colossal::text
