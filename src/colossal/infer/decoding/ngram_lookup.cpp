#include "colossal/infer/decoding/ngram_lookup.h"

#include <algorithm>

#include "colossal/base/seed.h"

namespace colossal::infer {
namespace {

constexpr int64_t kMaxPause = 32;

}  // namespace

NgramLookup::NgramLookup(const std::vector<int64_t>& tokens, int64_t max_tokens)
    : max_tokens_(max_tokens), length_(max_tokens) {
  tokens_.reserve(tokens.size());
  for (const int64_t token : tokens) push(token);
}

uint64_t NgramLookup::hash_of_last(size_t count) const {
  uint64_t hash = count;
  for (size_t i = tokens_.size() - count; i < tokens_.size(); ++i)
    hash = derive_seed(hash, static_cast<uint64_t>(tokens_[i]));
  return hash;
}

void NgramLookup::push(int64_t token) {
  // Adds the runs that ended the sequence until now, because only now a token follows them.
  for (size_t count = kMinNgram; count <= std::min(kMaxNgram, tokens_.size()); ++count)
    behind_[hash_of_last(count)] = tokens_.size();
  tokens_.push_back(token);
}

std::vector<int64_t> NgramLookup::propose(int64_t max_tokens) {
  if (left_out_ > 0) {
    --left_out_;
    return {};
  }
  max_tokens = std::min(max_tokens, length_);
  if (max_tokens <= 0) return {};
  for (size_t count = std::min(kMaxNgram, tokens_.size()); count >= kMinNgram; --count) {
    const auto found = behind_.find(hash_of_last(count));
    if (found == behind_.end()) continue;
    const size_t behind = found->second;
    // Another run may have the same hash.
    if (!std::equal(tokens_.end() - static_cast<int64_t>(count), tokens_.end(),
                    tokens_.begin() + static_cast<int64_t>(behind - count)))
      continue;
    std::vector<int64_t> drafted;
    // A sequence that repeats the same few tokens is expected to continue to do so: proposed tokens then repeat
    // proposed ones.
    for (size_t i = 0; i < static_cast<size_t>(max_tokens); ++i)
      drafted.push_back(behind + i < tokens_.size() ? tokens_[behind + i] : drafted[behind + i - tokens_.size()]);
    return drafted;
  }
  return {};
}

void NgramLookup::judge(int64_t proposed, int64_t accepted) {
  if (proposed == 0) return;
  if (accepted == 0) {
    pause_ = std::min(kMaxPause, pause_ * 2 + 1);
    left_out_ = pause_;
    length_ = 1 + max_tokens_ / 4;
    return;
  }
  pause_ = 0;
  length_ = accepted == proposed ? std::min(max_tokens_, length_ * 2) : std::max<int64_t>(1, accepted + 1);
}

}  // namespace colossal::infer
