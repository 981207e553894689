// Reads and writes the safetensors format: 8 bytes of header length (little endian), a JSON table of tensors, and their
// bytes without gaps.
//
// Files are untrusted: the reader checks every rule of the format before it returns any tensor. It reads the bytes of a
// tensor only when the caller uses that tensor.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace colossal {
class AtomicFile;
class MappedFile;
}  // namespace colossal

namespace colossal::checkpoint {

/// One tensor of a file. Its bytes are [begin, end) of the data after the header.
struct TensorEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

/// Reader of an open file, mapped into memory.
///
/// Errors: the constructor throws Error("file", ...) if the file cannot be read. It throws Error("safetensors", path
///         and rule) unless the header is inside the file, is at most 100 MB and is a JSON object without duplicate
///         names. Every dtype must be known, every shape must agree with its bytes, and the tensors must cover the data
///         exactly, without overlap or hole.
/// Thread safety: const members may be called from several threads.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  /// Returns a read-only view of the mapping, which exists as long as the tensor does. Never write to it. (The result
  /// is a copy if the tensor is not aligned to its element size in the file.)
  /// Errors: no such tensor.
  at::Tensor tensor(const std::string& name) const;
  /// Returns the raw bytes of a tensor, valid while this reader lives. Errors: no such tensor.
  std::string_view bytes(const std::string& name) const;
  /// Releases the pages of a tensor from this process's memory; its views read them from the file again. Errors: no
  /// such tensor.
  void leave(const std::string& name) const;
  /// Returns true if a tensor can be read without the disk (MappedFile::is_in_memory). Errors: no such tensor.
  bool is_in_memory(const std::string& name) const;

 private:
  const TensorEntry& entry(const std::string& name) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;  // unmapped when the last view is destroyed
  std::string_view data_;                   // bytes after the header
  std::map<std::string, TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a file tensor by tensor, in bounded memory. The file appears under its name, complete and flushed, at
/// finish(). Before that, or if the writer is destroyed earlier, a file at `path` is unchanged.
///
/// Tensors with larger elements are written first, so that every tensor is aligned. Tensors of one element size are
/// sorted by name, so that equal content gives an equal file, or keep the given order (Order). The header is padded to
/// 8 bytes.
///
/// Errors: throws Error("safetensors", path and reason) for duplicate names, a dtype that the format lacks, and a
///         missing tensor at finish(). Also for a tensor that differs from the next entry in dtype or shape. Throws
///         Error("file", ...) for any failed write (e.g. a full disk).
class SafetensorsWriter {
 public:
  enum class Order { ByName, AsGiven };
  /// Sets `begin` and `end` of the entries; their given values are ignored.
  SafetensorsWriter(const std::string& path, std::vector<TensorEntry> entries,
                    const std::map<std::string, std::string>& metadata = {}, Order order = Order::ByName);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Returns the entries in the order in which write() expects their tensors.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  /// Appends the tensor of the next entry, from any device and any strides.
  void write(const at::Tensor& value);
  void finish();

 private:
  std::string path_;
  std::vector<TensorEntry> entries_;
  size_t next_ = 0;
  std::unique_ptr<AtomicFile> file_;
};

/// Sorts entries into the order of a written file: larger elements first, then by name.
void sort_entries(std::vector<TensorEntry>& entries);

/// Writes all of `tensors` to one file.
void write_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Returns the format's name of a dtype ("F32", "BF16", "F8_E4M3", ...). Errors: a dtype that the format lacks.
std::string safetensors_dtype(at::ScalarType dtype);

}  // namespace colossal::checkpoint
