// GGUF, the file format of llama.cpp: named values, a table of tensors, and the tensors' blocks. The reader and the
// writer do not need LibTorch.
//
//   const GgufFile file("model.gguf");
//   const std::string family = file.text("general.architecture");
//   for (const GgufTensor& tensor : file.tensors()) use(tensor.type, file.bytes(tensor));
//
// See: https://github.com/ggml-org/ggml/blob/master/docs/reference/gguf.md.
#pragma once
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

namespace colossal::formats {

/// A storage type: `block` elements of a tensor are stored in `bytes` bytes.
struct GgufType {
  uint32_t id;
  const char* name;  ///< "Q4_K"
  int64_t block, bytes;
};
/// Returns the type with this id. Null = unknown, which a file may not have. A reader can skip a tensor of any known
/// type, even if it cannot decode the elements.
const GgufType* gguf_type(uint32_t id);
/// Returns the type with this name, in any case; null = there is none.
const GgufType* gguf_type(const std::string& name);

/// A value of a file, or a list of values. `kind` selects which of the three vectors holds them; they are in the order
/// of the file.
struct GgufValue {
  enum class Kind : uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, Text, List, U64, I64, F64 };
  Kind kind = Kind::U32;  ///< kind of the value, or of the elements of a list; never List
  bool is_list = false;
  std::vector<int64_t> integers{};  ///< booleans as 0 and 1
  std::vector<double> reals{};
  std::vector<std::string> texts{};

  size_t size() const { return integers.size() + reals.size() + texts.size(); }
  bool operator==(const GgufValue&) const = default;

  static GgufValue flag(bool value) { return {Kind::Bool, false, {value}}; }
  static GgufValue integer(int64_t value) { return {Kind::U32, false, {value}}; }
  static GgufValue real(double value) { return {Kind::F32, false, {}, {value}}; }
  static GgufValue text(std::string value) { return {Kind::Text, false, {}, {}, {std::move(value)}}; }
  static GgufValue list(std::vector<std::string> values) { return {Kind::Text, true, {}, {}, std::move(values)}; }
  static GgufValue list(Kind kind, std::vector<int64_t> values) { return {kind, true, std::move(values)}; }
  static GgufValue list(std::vector<double> values) { return {Kind::F32, true, {}, std::move(values)}; }
};
using GgufValues = std::map<std::string, GgufValue>;

/// An entry of the table of tensors.
struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  ///< slowest dimension first, as in LibTorch: the reverse of the order in the file
  const GgufType* type;
  uint64_t offset = 0;  ///< bytes from the start of the data to the first block
  /// Returns the number of elements.
  int64_t numbers() const;
  int64_t bytes() const { return numbers() / type->block * type->bytes; }
};

/// An open file of version 2 or 3, mapped into memory.
///
/// Errors: the constructor throws Error("file", ...) if the file cannot be read. It throws Error("gguf", path and rule)
///         unless all of these rules hold. The bytes are little-endian. Every count and length fits the bytes that
///         follow. Kinds and types are known. Names of values and tensors are distinct. Lists are not nested. Integers
///         fit 63 bits. general.alignment is a power of two in [8, 1 MiB]. Tensors have 1 to 4 dimensions above 0 and
///         rows of whole blocks. Each tensor is inside the file, at a multiple of the alignment.
/// Thread safety: const members may be called from several threads.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return path_; }
  const GgufValues& values() const { return values_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  bool has(const std::string& key) const { return values_.count(key) > 0; }
  /// Returns one value. Errors ("gguf"): the key is absent, or the value is of another kind or a list.
  const std::string& text(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  double real(const std::string& key) const;  ///< accepts integers, too, and requires a finite number
  /// Returns one value, or `otherwise` if the key is absent. Errors ("gguf"): the value is of another kind or a list.
  std::string text(const std::string& key, const std::string& otherwise) const;
  int64_t integer(const std::string& key, int64_t otherwise) const;
  /// Returns a list. Errors ("gguf"): the key is absent, or the value is not a list or has elements of another kind.
  const std::vector<std::string>& texts(const std::string& key) const;
  const std::vector<int64_t>& integers(const std::string& key) const;
  const std::vector<double>& reals(const std::string& key) const;

  /// Returns the blocks of a tensor of this file. They are valid while this object or its mapping() lives.
  std::string_view bytes(const GgufTensor& tensor) const;
  /// Drops the pages of a tensor from the memory of this process; see MappedFile::leave().
  void leave(const GgufTensor& tensor) const;
  /// Returns true if a tensor can be read without the disk; see MappedFile::is_in_memory().
  bool is_in_memory(const GgufTensor& tensor) const;
  const std::shared_ptr<const MappedFile>& mapping() const { return file_; }

 private:
  const GgufValue& value(const std::string& key, bool is_list) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  uint64_t data_ = 0;  // offset of the data in the file
  GgufValues values_;
  std::vector<GgufTensor> tensors_;
};

/// A writer of files of version 3, tensor by tensor. finish() gives the file its name, complete and flushed.
///
/// Errors: throws Error("gguf", path and reason) for tensors and alignments that GgufFile refuses, for blocks that do
///         not have the size of the next tensor or exceed it in parts, and at finish() for a missing tensor. Throws
///         Error("file", ...) on any failed write.
class GgufWriter {
 public:
  /// Computes the offsets of `tensors` and writes the header. general.architecture is the first value, as readers
  /// expect; the others are in the order of their names. The alignment is general.alignment of `values`, or 32 if it is
  /// absent.
  GgufWriter(const std::string& path, const GgufValues& values, std::vector<GgufTensor> tensors);
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Writes the blocks of the next tensor.
  void write(std::string_view blocks);
  /// Writes the next blocks of the next tensor. It is complete when all of its blocks were written.
  void write_part(std::string_view blocks);
  /// Commits the file, after all tensors were written.
  void finish();

 private:
  std::string path_;
  std::vector<GgufTensor> tensors_;
  uint64_t alignment_ = 32;
  size_t next_ = 0;
  int64_t written_ = 0;  // bytes of the next tensor
  std::unique_ptr<AtomicFile> file_;
};

/// Returns true if `path` is a regular file that begins as a GGUF file does. A file that cannot be read gives false.
bool is_gguf(const std::string& path);

}  // namespace colossal::formats
