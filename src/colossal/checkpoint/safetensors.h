// The safetensors format: 8 bytes of header length (little endian), a JSON table of tensors, their bytes without gaps.
//
// Files are untrusted: every rule of the format is checked before any tensor is handed out, and nothing of a tensor is
// read before it is asked for.
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

/// What a file says about one of its tensors. Its bytes lie at [begin, end) of the data that follows the header.
struct TensorEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

/// An open file, mapped into memory.
///
/// Errors: the constructor throws Error("file", ...) when the file cannot be read, and Error("safetensors", path and
///         rule) unless the header lies inside the file, is at most 100 MB and is a JSON object without duplicate
///         names, every dtype is known, every shape agrees with its bytes, and the tensors cover the data exactly,
///         without overlap or hole.
/// Thread safety: const members may be called from several threads.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  /// A read-only view of the mapping, which stays alive as long as the tensor does. Never write to it.
  /// (A copy where the file did not align the tensor to its element size.)
  /// Errors: no such tensor.
  at::Tensor tensor(const std::string& name) const;
  /// The raw bytes of a tensor, valid while this reader lives. Errors: no such tensor.
  std::string_view bytes(const std::string& name) const;
  /// What was read of a tensor takes no memory of this process any more; its views read it anew. Errors: no such tensor.
  void leave(const std::string& name) const;

 private:
  const TensorEntry& entry(const std::string& name) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;  // unmapped when the last view dies
  std::string_view data_;                   // what follows the header
  std::map<std::string, TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a file tensor by tensor, in bounded memory. It appears under its name, complete and flushed, at finish();
/// until then, and when the writer dies before, whatever was at `path` stays as it is.
///
/// Larger elements come first, so that every tensor is aligned; those of one size by name, so that equal content gives
/// an equal file, or as given. The header is padded to 8 bytes.
///
/// Errors: throws Error("safetensors", path and reason) on duplicate names, a dtype the format lacks, a tensor that
///         is not the next entry in dtype or shape, a missing tensor at finish(); Error("file", ...) on any failed
///         write (a full disk).
class SafetensorsWriter {
 public:
  enum class Order { ByName, AsGiven };
  /// `begin` and `end` of the entries are computed here.
  SafetensorsWriter(const std::string& path, std::vector<TensorEntry> entries,
                    const std::map<std::string, std::string>& metadata = {}, Order order = Order::ByName);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// In the order in which write() wants the tensors.
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

/// The order of tensors in a written file: larger elements first, then by name.
void sort_entries(std::vector<TensorEntry>& entries);

/// Writes all of `tensors` to one file.
void write_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// The format's name of a dtype ("F32", "BF16", "F8_E4M3", ...). Errors: a dtype the format lacks.
std::string safetensors_dtype(at::ScalarType dtype);

}  // namespace colossal::checkpoint
