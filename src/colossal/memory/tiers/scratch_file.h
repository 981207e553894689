// The open file, which the two engines that pass requests to the system share.
#pragma once
#include <memory>
#include <string>

#include "colossal/memory/tiers/block_file.h"

namespace colossal::memory {

/// An open file without a name: all of BlockFile but its requests.
class ScratchFile : public BlockFile {
 public:
  /// Takes ownership of `descriptor`.
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

/// Makes a file whose requests are carried out by `threads` threads.
std::unique_ptr<BlockFile> make_threaded_file(int descriptor, std::string folder, bool direct, int threads);

/// Makes a file whose requests go through the system's io_uring. Returns null, without taking ownership of
/// `descriptor`, if the build did not find the library or the system refuses io_uring, as in containers. It also
/// returns null if the system is too old for reads and writes through io_uring.
std::unique_ptr<BlockFile> make_io_uring_file(int descriptor, const std::string& folder, bool direct, int requests);

}  // namespace colossal::memory
