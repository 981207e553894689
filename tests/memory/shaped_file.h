// A file on a disk whose failures a test controls.
#pragma once
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "colossal/memory/tiers/block_file.h"

namespace colossal::memory {

/// A scratch file whose requests pass through a function of the test.
class ShapedFile final : public BlockFile {
 public:
  explicit ShapedFile(const std::string& folder, const BlockFileOptions& options = {})
      : file(open_scratch_file(folder, options)) {}
  const std::string& folder() const override { return file->folder(); }
  const char* engine() const override { return file->engine(); }
  bool is_direct() const override { return file->is_direct(); }
  bool is_in_memory() const override { return file->is_in_memory(); }
  int64_t free_bytes() const override { return std::min(room - reserved, file->free_bytes()); }
  int reserve(int64_t bytes) override {
    if (bytes > room) return ENOSPC;
    reserved = std::max(reserved, bytes);
    return file->reserve(bytes);
  }
  void begin(BlockRequest request) override { shape ? shape(std::move(request)) : file->begin(std::move(request)); }

  std::unique_ptr<BlockFile> file;
  int64_t room = int64_t{1} << 40, reserved = 0;
  std::function<void(BlockRequest)> shape;  // null: requests are passed on unchanged
};

}  // namespace colossal::memory
