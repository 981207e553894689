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

TokenMasks::TokenMasks(Grammar grammar, int rule, TokenTrie trie, std::vector<int64_t> end_ids, size_t max_states)
    : trie_(std::move(trie)),
      machine_(std::move(grammar), rule, trie_.alphabet()),
      end_ids_(std::move(end_ids)),
      max_states_(max_states) {
  require(!end_ids_.empty(), "grammar", "a grammar needs a tokenizer with an end token");
  for (const int64_t id : end_ids_)
    require(id >= 0 && id < vocabulary_size(), "grammar", "end ids must be in the vocabulary of ", vocabulary_size(),
            ": got ", id);
}

std::vector<uint64_t> TokenMasks::walk(int state) {
  std::vector<uint64_t> bits((static_cast<size_t>(vocabulary_size()) + 63) / 64, 0);
  const auto set = [&](int64_t id) { bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); };
  const auto clear = [&](int64_t id) { bits[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64)); };
  const auto set_ends = [&](bool may_end) {
    for (const int64_t id : end_ids_) may_end ? set(id) : clear(id);  // includes end tokens that stand for a text
    return bits;
  };
  if (state == kEnded) return set_ends(true);
  std::vector<int> states{state};  // the state after each byte of the path
  const std::vector<TokenTrie::Node>& nodes = trie_.nodes_;
  for (size_t at = 0; at < nodes.size();) {
    const TokenTrie::Node& node = nodes[at];
    states.resize(static_cast<size_t>(node.depth));
    const int after = machine_.next(states.back(), node.byte);
    if (after == GrammarMachine::kDead) {
      at = static_cast<size_t>(node.beyond);
      continue;
    }
    states.push_back(after);
    for (size_t i = node.first; i < node.end; ++i) set(trie_.ids_[i]);
    ++at;
  }
  return set_ends(machine_.may_end(state));
}

const std::vector<uint64_t>& TokenMasks::allowed(int state) {
  const auto at = masks_.find(state);
  if (at != masks_.end()) return at->second;
  if (masks_.size() == kMaxMasks) masks_.clear();
  return masks_[state] = walk(state);
}

int TokenMasks::next(int state, int64_t token) {
  const bool ends = std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end();
  if (ends && (state == kEnded || machine_.may_end(state))) return kEnded;
  int after = state;
  const bool known = !ends && state != kEnded && token >= 0 && token < vocabulary_size() && !trie_.piece(token).empty();
  if (known)
    for (const char byte : trie_.piece(token))
      if (after != GrammarMachine::kDead) after = machine_.next(after, static_cast<uint8_t>(byte));
  require(known && after != GrammarMachine::kDead, "grammar", "token ", token, " is not allowed here");
  return after;
}

void TokenMasks::bound_states() {
  if (machine_.states() <= max_states_) return;
  std::vector<int> states;
  for (const TokenWalk* walk : walks_)
    if (walk->state_ != kEnded) states.push_back(walk->state_);
  const std::vector<int> moved = machine_.keep(states);
  size_t at = 0;
  for (TokenWalk* walk : walks_)
    if (walk->state_ != kEnded) walk->state_ = moved[at++];
  masks_.clear();
}

TokenWalk::TokenWalk(std::shared_ptr<TokenMasks> masks) : masks_(std::move(masks)), state_(masks_->start()) {
  masks_->walks_.insert(this);
}

TokenWalk::TokenWalk(const TokenWalk& other) : masks_(other.masks_), state_(other.state_) {
  masks_->walks_.insert(this);
}

TokenWalk::~TokenWalk() { masks_->walks_.erase(this); }

const std::vector<uint64_t>& TokenWalk::allowed() {
  masks_->bound_states();
  return masks_->allowed(state_);
}

void TokenWalk::accept(int64_t token) { state_ = masks_->next(state_, token); }

}  // namespace colossal::text
