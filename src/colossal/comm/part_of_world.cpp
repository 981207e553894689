#include "colossal/comm/part_of_world.h"

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

int size_of_part(const World& whole, int parts) {
  require(parts >= 1 && whole.size() % parts == 0, "comm", "the number of parts must divide the number of ranks: got ",
          parts, " parts of ", whole.size(), " ranks");
  return whole.size() / parts;
}

}  // namespace

PartOfWorld::PartOfWorld(World& whole, int parts)
    : WorldDecorator(whole), whole_(whole), size_(size_of_part(whole, parts)) {}

std::shared_ptr<Group> PartOfWorld::make_group(const std::string& name, const std::vector<int>& ranks,
                                               const std::string& channel) {
  std::vector<int> of_whole;
  for (const int rank : ranks) {
    require(rank >= 0 && rank < size_, "comm", "group \"", name, "\": ranks must be in [0, ", size_, "): got ", rank);
    of_whole.push_back(first_rank_of(index()) + rank);
  }
  return whole_.make_group(name, of_whole, channel);
}

}  // namespace colossal::comm
