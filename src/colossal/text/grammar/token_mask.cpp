#include "colossal/text/grammar/token_mask.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::text {

TokenTrie::TokenTrie(const Tokenizer& tokenizer) {
  const int64_t size = tokenizer.vocabulary_size();
  for (int64_t id = 0; id < size; ++id) pieces_.push_back(tokenizer.piece(id));
  for (int64_t id = 0; id < size; ++id)
    if (!pieces_[id].empty()) ids_.push_back(id);
  std::stable_sort(ids_.begin(), ids_.end(), [&](int64_t a, int64_t b) { return pieces_[a] < pieces_[b]; });
  std::vector<int> path;  // nodes of the previous piece
  std::string before;
  for (size_t i = 0; i < ids_.size(); ++i) {
    const std::string& piece = pieces_[ids_[i]];
    const size_t same = static_cast<size_t>(
        std::mismatch(piece.begin(), piece.end(), before.begin(), before.end()).first - piece.begin());
    while (path.size() > same) nodes_[path.back()].beyond = static_cast<int>(nodes_.size()), path.pop_back();
    while (path.size() < piece.size()) {
      const auto byte = static_cast<uint8_t>(piece[path.size()]);
      path.push_back(static_cast<int>(nodes_.size()));
      nodes_.push_back({byte, static_cast<int>(path.size()), 0, i, i});
    }
    nodes_[path.back()].end = i + 1;  // equal pieces are consecutive
    if (piece.size() == 1) alphabet_.set(static_cast<uint8_t>(piece[0]));
    before = piece;
  }
  for (const int node : path) nodes_[node].beyond = static_cast<int>(nodes_.size());
}

TokenGrammar token_grammar(Grammar grammar, int rule, std::shared_ptr<const TokenTrie> trie) {
  grammar.prune(rule, trie->alphabet());
  TokenGrammar made{std::make_shared<const Grammar>(std::move(grammar)), rule, std::move(trie)};
  GrammarMachine(made.grammar, rule, made.trie->alphabet());  // refuses a start with too many steps
  return made;
}

TokenMasks::TokenMasks(TokenGrammar grammar, std::vector<int64_t> end_ids, const MaskLimits& limits)
    : grammar_(std::move(grammar)),
      machine_(grammar_.grammar, grammar_.rule, grammar_.trie->alphabet()),
      end_ids_(std::move(end_ids)),
      limits_(limits),
      free_at_(limits.bytes / 2) {
  require(!end_ids_.empty(), "grammar", "a grammar needs a tokenizer with an end token");
  for (const int64_t id : end_ids_)
    require(id >= 0 && id < vocabulary_size(), "grammar", "end ids must be in the vocabulary of ", vocabulary_size(),
            ": got ", id);
}

int64_t TokenMasks::bytes() const {
  const auto words = static_cast<int64_t>(vocabulary_size() + 63) / 64;
  return machine_.bytes() + static_cast<int64_t>(masks_.size()) * words * 8;
}

// Each pair of a state and a byte counts once per mask, whether or not the machine knows it already. So the count does
// not depend on earlier masks, which may differ between ranks and between requests.
int TokenMasks::counted_next(int state, uint8_t byte, Counted& counted, int64_t& steps) {
  const int after = machine_.next(state, byte);
  counted.resize(machine_.states());
  std::bitset<256>& bytes = counted[static_cast<size_t>(state)];
  if (bytes[byte]) return after;
  if (bytes.none()) steps += kStateSteps;
  bytes.set(byte);
  steps += machine_.steps(state, byte);
  require(steps <= limits_.steps, "grammar", "a mask of the tokens that may come next must take at most ",
          limits_.steps, " steps: got more; use fewer alternatives, or simpler patterns and counts");
  require(!is_full(), "grammar", "the states of a grammar must take at most ", limits_.bytes,
          " bytes: got more; use fewer alternatives, or simpler patterns and counts");
  return after;
}

TokenMasks::Mask TokenMasks::mask_of(int state) {
  Mask mask{std::vector<uint64_t>((static_cast<size_t>(vocabulary_size()) + 63) / 64, 0)};
  const auto set = [&](int64_t id) { mask.bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); };
  const auto clear = [&](int64_t id) { mask.bits[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64)); };
  const auto set_ends = [&](bool may_end) {
    for (const int64_t id : end_ids_) may_end ? set(id) : clear(id);  // includes end tokens that stand for a text
    return std::move(mask);
  };
  if (state == kEnded) return set_ends(true);
  std::vector<int> states{state};  // the state after each byte of the path
  Counted counted;
  const std::vector<TokenTrie::Node>& nodes = grammar_.trie->nodes_;
  for (size_t at = 0; at < nodes.size();) {
    const TokenTrie::Node& node = nodes[at];
    states.resize(static_cast<size_t>(node.depth));
    const int after = counted_next(states.back(), node.byte, counted, mask.steps);
    if (after == GrammarMachine::kDead) {
      at = static_cast<size_t>(node.beyond);
      continue;
    }
    states.push_back(after);
    for (size_t i = node.first; i < node.end; ++i) set(grammar_.trie->ids_[i]);
    ++at;
  }
  return set_ends(machine_.may_end(state));
}

const std::vector<uint64_t>& TokenMasks::allowed(int state) {
  const auto at = masks_.find(state);
  if (at != masks_.end()) return at->second.bits;
  if (masks_.size() == kMaxMasks) masks_.clear();
  return (masks_[state] = mask_of(state)).bits;
}

int TokenMasks::next(int state, int64_t token) {
  const bool ends = std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end();
  if (ends && (state == kEnded || machine_.may_end(state))) return kEnded;
  int after = state;
  const TokenTrie& trie = *grammar_.trie;
  const bool known = !ends && state != kEnded && token >= 0 && token < vocabulary_size() && !trie.piece(token).empty();
  if (known)
    for (const char byte : trie.piece(token))
      if (after != GrammarMachine::kDead) after = machine_.next(after, static_cast<uint8_t>(byte));
  require(known && after != GrammarMachine::kDead, "grammar", "token ", token, " is not allowed here");
  return after;
}

void TokenMasks::free_states() {
  std::vector<int> states;
  for (const TokenWalk* walk : walks_)
    if (walk->state_ != kEnded) states.push_back(walk->state_);
  const std::vector<int> moved = machine_.keep(states);
  size_t at = 0;
  for (TokenWalk* walk : walks_)
    if (walk->state_ != kEnded) walk->state_ = moved[at++];
  masks_.clear();
  // If walks keep most of the bytes, freeing at each mask would free little.
  free_at_ = std::clamp(2 * machine_.bytes(), limits_.bytes / 2, limits_.bytes);
}

TokenWalk::TokenWalk(std::shared_ptr<TokenMasks> masks) : masks_(std::move(masks)), state_(masks_->start()) {
  masks_->walks_.insert(this);
}

TokenWalk::TokenWalk(const TokenWalk& other) : masks_(other.masks_), state_(other.state_) {
  masks_->walks_.insert(this);
}

TokenWalk::~TokenWalk() { masks_->walks_.erase(this); }

const std::vector<uint64_t>& TokenWalk::allowed() {
  if (masks_->machine_.bytes() > masks_->free_at_) masks_->free_states();
  try {
    return masks_->allowed(state_);
  } catch (const Error&) {
    masks_->is_exhausted_ = true;
    if (!masks_->is_full()) throw;
  }
  masks_->free_states();  // the states of earlier masks may have taken the bytes that this one needs
  const std::vector<uint64_t>& mask = masks_->allowed(state_);
  masks_->is_exhausted_ = false;
  return mask;
}

void TokenWalk::accept(int64_t token) { state_ = masks_->next(state_, token); }

}  // namespace colossal::text
