// What the two ways to give requests to the system share: the open file.
#pragma once
#include <memory>
#include <string>

#include "colossal/memory/tiers/block_file.h"

namespace colossal::memory {

/// An open file without a name, and all of BlockFile but its requests.
class ScratchFile : public BlockFile {
 public:
  /// Takes over `descriptor`.
  ScratchFile(int descriptor, std::string folder, bool direct)
      : descriptor_(descriptor), folder_(std::move(folder)), direct_(direct) {}
  ~ScratchFile() override;
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::string& folder() const override { return folder_; }
  bool is_direct() const override { return direct_; }
  bool is_in_memory() const override;
  int reserve(int64_t bytes) override;
  int64_t free_bytes() const override;

 protected:
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
  std::string folder_;
  bool direct_;
  int64_t bytes_ = 0;
};

/// Requests are carried out by that many threads.
std::unique_ptr<BlockFile> make_threaded_file(int descriptor, std::string folder, bool direct, int threads);

/// Requests are given to the system's io_uring. Null, and nothing taken over, where this was built without the library
/// or the system refuses it, as containers do, or is too old to know reads and writes in it.
std::unique_ptr<BlockFile> make_io_uring_file(int descriptor, const std::string& folder, bool direct, int requests);

}  // namespace colossal::memory
