// GGUF, the file of llama.cpp: named values, a table of tensors, their blocks. Read and written without torch.
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

/// How the numbers of a tensor are stored: `block` of them in `bytes` bytes.
struct GgufType {
  uint32_t id;
  const char* name;  ///< "Q4_K"
  int64_t block, bytes;
};
/// Null: a file may not have it. Those that are known can be passed over, whether their numbers can be read or not.
const GgufType* gguf_type(uint32_t id);
/// By its name, in any case. Null: there is none.
const GgufType* gguf_type(const std::string& name);

/// A value of a file, or a list of values: `kind` says which of the three has them, in the order of the file.
struct GgufValue {
  enum class Kind : uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, Text, List, U64, I64, F64 };
  Kind kind = Kind::U32;  ///< of the elements, where it is a list; never List
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

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  ///< slowest dimension first, as torch has it: the reverse of the file's
  const GgufType* type;
  uint64_t offset = 0;  ///< of its first block, behind the start of the data
  int64_t numbers() const;
  int64_t bytes() const { return numbers() / type->block * type->bytes; }
};

/// An open file of version 2 or 3, mapped into memory.
///
/// Errors: the constructor throws Error("file", ...) when it cannot be read, and Error("gguf", path and rule) unless
///         the bytes are little-endian, every count and length fits what follows, kinds and types are known, names of
///         values and tensors are distinct, lists are not nested, integers fit 63 bits, general.alignment is a power of
///         two in [8, 1 MiB], tensors have 1 to 4 dimensions above 0, rows of whole blocks, and lie inside the file
///         where the alignment wants them.
/// Thread safety: const members may be called from several threads.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return path_; }
  const GgufValues& values() const { return values_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  bool has(const std::string& key) const { return values_.count(key) > 0; }
  /// One value. Errors ("gguf"): the key is not there, or of another kind, or a list.
  const std::string& text(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  double real(const std::string& key) const;  ///< integers too
  /// Returns one value, or `otherwise` if the key is not there. Errors ("gguf"): the value is of another kind, or a
  /// list.
  std::string text(const std::string& key, const std::string& otherwise) const;
  int64_t integer(const std::string& key, int64_t otherwise) const;
  /// A list. Errors: as those of one value. Integers are reals, too.
  const std::vector<std::string>& texts(const std::string& key) const;
  const std::vector<int64_t>& integers(const std::string& key) const;
  const std::vector<double>& reals(const std::string& key) const;

  /// The blocks of a tensor of this file: valid while this lives.
  std::string_view bytes(const GgufTensor& tensor) const;
  /// See MappedFile::leave().
  void leave(const GgufTensor& tensor) const;
  const std::shared_ptr<const MappedFile>& mapping() const { return file_; }

 private:
  const GgufValue& value(const std::string& key, bool is_list) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  uint64_t data_ = 0;  // where it starts in the file
  GgufValues values_;
  std::vector<GgufTensor> tensors_;
};

/// Writes a file of version 3 tensor by tensor, which appears under its name, complete and flushed, at finish().
///
/// Errors: throws Error("gguf", path and reason) for what GgufFile refuses, a tensor that is not the next one in bytes,
///         a missing one at finish(); Error("file", ...) on any failed write.
class GgufWriter {
 public:
  /// Offsets of the tensors are computed here. general.architecture comes first, as readers expect it; the others by
  /// name. An alignment is taken from `values`, else 32.
  GgufWriter(const std::string& path, const GgufValues& values, std::vector<GgufTensor> tensors);
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// The blocks of the next tensor.
  void write(std::string_view blocks);
  void finish();

 private:
  std::string path_;
  std::vector<GgufTensor> tensors_;
  uint64_t alignment_ = 32;
  size_t next_ = 0;
  std::unique_ptr<AtomicFile> file_;
};

/// It begins as a GGUF file does. False, too, of what cannot be read.
bool is_gguf(const std::string& path);

}  // namespace colossal
