#include "colossal/infer/decoding/block_pool.h"

#include "colossal/base/error.h"

namespace colossal::infer {

BlockPool::BlockPool(int64_t blocks, int64_t block_tokens) : block_tokens_(block_tokens) {
  require(blocks > 0 && block_tokens > 0, "cache", "blocks and their tokens must be positive: got ", blocks, " of ",
          block_tokens);
  references_.resize(blocks);
  kept_at_.resize(blocks, kept_.end());
  for (int64_t i = 0; i < blocks; ++i) place_.push_back(free_.insert(free_.end(), static_cast<int32_t>(i)));
}

void BlockPool::forget(int32_t block) {
  if (kept_at_[block] == kept_.end()) return;
  kept_.erase(kept_at_[block]);
  kept_at_[block] = kept_.end();
}

std::optional<int32_t> BlockPool::take() {
  if (free_.empty()) return std::nullopt;
  const int32_t block = free_.front();
  free_.pop_front();
  forget(block);
  references_[block] = 1;
  return block;
}

void BlockPool::give_back(int32_t block) {
  require(block >= 0 && block < blocks() && references_[block] > 0, "cache", "block ", block,
          " is not allocated: got an invalid id or a second release");
  if (--references_[block] > 0) return;
  const bool keeps = kept_at_[block] != kept_.end();
  place_[block] = free_.insert(keeps ? free_.end() : free_.begin(), block);
}

BlockPool::Prefix BlockPool::prefix_at(int64_t before, const std::vector<int64_t>& tokens, int64_t index) const {
  const auto first = tokens.begin() + index * block_tokens_;
  return {before, {first, first + block_tokens_}};
}

std::vector<int32_t> BlockPool::find(const std::vector<int64_t>& tokens, const std::string& key) {
  std::vector<int32_t> found;
  const auto root = roots_.find(key);
  if (root == roots_.end()) return found;
  int64_t number = root->second;
  for (int64_t i = 0; (i + 1) * block_tokens_ < static_cast<int64_t>(tokens.size()); ++i) {
    const auto kept = kept_.find(prefix_at(number, tokens, i));
    if (kept == kept_.end()) break;
    const int32_t block = kept->second.block;
    if (references_[block]++ == 0) free_.erase(place_[block]);
    found.push_back(block);
    number = kept->second.number;
  }
  return found;
}

void BlockPool::keep(const std::vector<int32_t>& blocks, const std::vector<int64_t>& tokens, int64_t given_back,
                     const std::string& key) {
  const auto [root, is_new_key] = roots_.try_emplace(key, next_number_);
  if (is_new_key) ++next_number_;
  int64_t number = root->second;
  const int64_t full = static_cast<int64_t>(tokens.size()) / block_tokens_;
  for (int64_t i = 0; i < given_back; ++i) {
    const auto kept = kept_.find(prefix_at(number, tokens, i));
    if (kept == kept_.end()) return;
    number = kept->second.number;
  }
  for (int64_t i = given_back; i < full && i < static_cast<int64_t>(blocks.size()); ++i) {
    const auto [kept, is_new] = kept_.try_emplace(prefix_at(number, tokens, i), Kept{blocks[i], next_number_});
    if (is_new) {
      forget(blocks[i]);
      kept_at_[blocks[i]] = kept;
      ++next_number_;
    }
    number = kept->second.number;
  }
}

}  // namespace colossal::infer
