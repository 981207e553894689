#include "colossal/serve/replicas/sent_prefixes.h"

#include <random>
#include <string_view>

namespace colossal::serve {
namespace {

uint64_t random_word() {
  std::random_device random;
  const uint64_t high = random();
  return high << 32 | random();
}

template <class Number>
std::string_view view_of(const Number* numbers, size_t count) {
  return {reinterpret_cast<const char*>(numbers), count * sizeof(Number)};
}

}  // namespace

PrefixHasher::PrefixHasher() : key_{random_word(), random_word()} {}

std::vector<uint64_t> PrefixHasher::blocks_of(const std::vector<int64_t>& prompt, const std::string& cache_key) const {
  std::vector<uint64_t> blocks;
  uint64_t before = comm::keyed_hash(key_, cache_key);
  for (size_t begin = 0; begin + kBlockTokens <= prompt.size(); begin += kBlockTokens) {
    const uint64_t parts[] = {before, comm::keyed_hash(key_, view_of(&prompt[begin], kBlockTokens))};
    before = comm::keyed_hash(key_, view_of(parts, 2));
    blocks.push_back(before);
  }
  return blocks;
}

int64_t SentPrefixes::shared(const std::vector<uint64_t>& blocks) const {
  int64_t count = 0;
  while (count < static_cast<int64_t>(blocks.size()) && places_.count(blocks[count]) > 0) ++count;
  return count;
}

void SentPrefixes::remember(const std::vector<uint64_t>& blocks) {
  // From the last block to the first one, because a block is useful only with those before it.
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto found = places_.find(blocks[i]);
    if (found != places_.end()) {
      in_order_.splice(in_order_.begin(), in_order_, found->second);
      continue;
    }
    in_order_.push_front(blocks[i]);
    places_.emplace(blocks[i], in_order_.begin());
  }
  for (; places_.size() > max_blocks_; in_order_.pop_back()) places_.erase(in_order_.back());
}

}  // namespace colossal::serve
