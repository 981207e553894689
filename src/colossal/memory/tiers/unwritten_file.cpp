#include <cerrno>
#include <limits>
#include <utility>

#include "colossal/memory/tiers/block_file.h"

namespace colossal::memory {
namespace {

class UnwrittenFile final : public BlockFile {
 public:
  explicit UnwrittenFile(std::string folder) : folder_(std::move(folder)) {}
  const std::string& folder() const override { return folder_; }
  const char* engine() const override { return "none"; }
  bool is_direct() const override { return true; }
  bool is_in_memory() const override { return false; }
  int reserve(int64_t) override { return 0; }
  int64_t free_bytes() const override { return std::numeric_limits<int64_t>::max(); }
  void begin(BlockRequest request) override { request.done(-EBADF); }

 private:
  const std::string folder_;
};

}  // namespace

std::unique_ptr<BlockFile> make_unwritten_file(std::string folder) {
  return std::make_unique<UnwrittenFile>(std::move(folder));
}

}  // namespace colossal::memory
