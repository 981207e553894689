#include "colossal/formats/npy.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::formats {
namespace {

constexpr char kNpy[] = "npy";
constexpr uint64_t kMaxHeaderOfArray = 1 << 16;

struct NumpyType {
  const char* name;
  ElementType type;
};
constexpr NumpyType kNumpyTypes[] = {
    {"f8", ElementType::F64}, {"f4", ElementType::F32}, {"f2", ElementType::F16}, {"i8", ElementType::I64},
    {"i4", ElementType::I32}, {"i2", ElementType::I16}, {"i1", ElementType::I8},  {"u8", ElementType::U64},
    {"u4", ElementType::U32}, {"u2", ElementType::U16}, {"u1", ElementType::U8},  {"b1", ElementType::Bool},
    {"c8", ElementType::C64},
};

ElementType type_of_numpy(const std::string& text, const std::string& where) {
  require(!text.starts_with('>') || text.ends_with('1'), kNpy, where, " must be little-endian: got ", printable(text),
          "; save it as x.astype(x.dtype.newbyteorder('<'))");
  for (const NumpyType& row : kNumpyTypes)
    if (text.size() == 3 && std::string_view("<|=>").find(text[0]) != std::string_view::npos &&
        text.substr(1) == row.name)
      return row.type;
  throw Error(kNpy, concat(where, " must be an array of numbers: got elements of type ", printable(text),
                           text.ends_with("O") ? ", Python objects, whose code would run" : "",
                           "; save it with another dtype"));
}

/// Reads the header's text, which is a dict as Python writes it.
class NpyHeaderText {
 public:
  NpyHeaderText(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  StridedTensor read() {
    expect('{');
    std::set<std::string> keys;
    bool fortran = false;
    while (!found('}')) {
      const std::string key = quoted();
      check(keys.insert(key).second);
      expect(':');
      if (key == "descr")
        tensor_.type = type();
      else if (key == "fortran_order")
        fortran = truth();
      else if (key == "shape")
        tensor_.shape = sizes();
      else
        check(false);
      if (!found(',')) {
        expect('}');
        break;
      }
    }
    blanks();
    check(text_.empty() && keys.size() == 3);
    set_dense_strides(tensor_, fortran);
    return tensor_;
  }

 private:
  void check(bool ok) const {
    require(ok, kNpy, where_, " must have a header with descr, fortran_order and shape: got one that is damaged at ",
            printable(std::string(text_.substr(0, 20))));
  }
  void blanks() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n' || text_[0] == '\t')) text_.remove_prefix(1);
  }
  bool found(char wanted) {
    blanks();
    if (!text_.starts_with(wanted)) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char wanted) { check(found(wanted)); }
  std::string quoted() {
    blanks();
    const char quote = text_.empty() ? '\0' : text_[0];
    check(quote == '\'' || quote == '"');
    const size_t end = text_.find(quote, 1);
    check(end != std::string_view::npos);
    const std::string inner(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return inner;
  }
  ElementType type() {
    blanks();
    require(!text_.starts_with('['), kNpy, where_, " must be an array of numbers: got one of records");
    return type_of_numpy(quoted(), where_);
  }
  bool truth() {
    blanks();
    const bool is_true = text_.starts_with("True");
    check(is_true || text_.starts_with("False"));
    text_.remove_prefix(is_true ? 4 : 5);
    return is_true;
  }
  std::vector<int64_t> sizes() {
    std::vector<int64_t> all;
    expect('(');
    while (!found(')')) {
      int64_t size = 0;
      blanks();
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      check(error == std::errc() && size >= 0);
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      if (text_.starts_with('L')) text_.remove_prefix(1);  // Python 2 writes 3L
      all.push_back(size);
      if (!found(',')) {
        expect(')');
        break;
      }
    }
    return all;
  }

  std::string_view text_;
  const std::string& where_;
  StridedTensor tensor_;
};

}  // namespace

StridedTensor read_npy_header(std::string_view start, const std::string& where) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  const auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(start[i])); };
  require(start.size() >= 12 && start.starts_with(kMagic), kNpy, where,
          " must be an array of NumPy: got bytes that do not begin as one");
  require(byte(6) >= 1 && byte(6) <= 3, kNpy, where, " must be of version 1, 2 or 3 of NumPy's format: got ", byte(6));
  const bool is_first = byte(6) == 1;
  const uint64_t begin = is_first ? 10 : 12,
                 length = byte(8) | byte(9) << 8 | (is_first ? 0 : byte(10) << 16 | byte(11) << 24);
  require(length <= start.size() - begin, kNpy, where, " has a header of ", length, " bytes: got ",
          start.size() - begin, " (truncated file?)");
  StridedTensor tensor = NpyHeaderText(start.substr(begin, length), where).read();
  tensor.begin = begin + length;
  return tensor;
}

NpzFile::NpzFile(const std::string& path) : file_(path) {
  constexpr std::string_view kEnd = ".npy";
  for (size_t i = 0; i < file_.members().size(); ++i) {
    const ZipMember& member = file_.members()[i];
    const std::string where = concat(path, ": ", printable(member.name));
    require(member.name.ends_with(kEnd), kNpy, where, " must be an array, NAME.npy; name a file of numpy.savez");
    std::string start(std::min(member.size, kMaxHeaderOfArray), '\0');
    file_.read(member, 0, start.size(), start.data());
    StridedTensor tensor = read_npy_header(start, where);
    tensor.storage = i;
    check_tensor(tensor, member.size, kNpy, where);
    const auto bytes = static_cast<uint64_t>(tensor.span() * bytes_of(tensor.type));
    require(tensor.begin + bytes == member.size, kNpy, where, " must end with its last element: got ",
            member.size - tensor.begin - bytes, " bytes more");
    tensors_.emplace(member.name.substr(0, member.name.size() - kEnd.size()), std::move(tensor));
  }
}

void NpzFile::read(const StridedTensor& tensor, void* out) const {
  file_.read(file_.members().at(tensor.storage), tensor.begin,
             static_cast<uint64_t>(tensor.span() * bytes_of(tensor.type)), out);
}

}  // namespace colossal::formats
