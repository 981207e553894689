#include "colossal/formats/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/input_file.h"
#include "colossal/base/json_file.h"
#include "colossal/base/mapped_file.h"

namespace colossal::formats {
namespace {

using Kind = GgufValue::Kind;

constexpr char kComponent[] = "gguf";

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18}};

/// Returns the minimum number of bytes of one value in a file. An empty text has the bytes of its length.
int64_t min_bytes(Kind kind) {
  static constexpr int64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return kBytes[static_cast<uint32_t>(kind)];
}

/// A reader of the header. It checks each length against the bytes that are left before it uses the length.
class Cursor {
 public:
  Cursor(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  template <class... Parts>
  void check(bool ok, const Parts&... parts) const {
    require(ok, kComponent, path_, ": ", parts...);
  }
  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  std::string_view take(uint64_t count) {
    check(count <= left(), "ends within its header, at byte ", bytes_.size(), ": it was cut off or damaged");
    position_ += count;
    return bytes_.substr(position_ - count, count);
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  /// Reads a count of items that need at least `min_size` bytes each.
  uint64_t count(uint64_t min_size, const char* what) {
    const auto value = number<uint64_t>();
    check(value <= left() / min_size, "is too short for the ", value, " ", what,
          " that it declares: it was cut off or damaged");
    return value;
  }
  std::string text() { return std::string(take(count(1, "characters of a text"))); }

  void value(Kind kind, GgufValue& to) {
    switch (kind) {
      case Kind::U8:
        return to.integers.push_back(number<uint8_t>());
      case Kind::I8:
        return to.integers.push_back(number<int8_t>());
      case Kind::U16:
        return to.integers.push_back(number<uint16_t>());
      case Kind::I16:
        return to.integers.push_back(number<int16_t>());
      case Kind::U32:
        return to.integers.push_back(number<uint32_t>());
      case Kind::I32:
        return to.integers.push_back(number<int32_t>());
      case Kind::I64:
        return to.integers.push_back(number<int64_t>());
      case Kind::Bool:
        return to.integers.push_back(number<uint8_t>() != 0);
      case Kind::F32:
        return to.reals.push_back(number<float>());
      case Kind::F64:
        return to.reals.push_back(number<double>());
      case Kind::Text:
        return to.texts.push_back(text());
      case Kind::U64: {
        const auto whole = number<uint64_t>();
        check(whole <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), "has an integer above 63 bits");
        return to.integers.push_back(static_cast<int64_t>(whole));
      }
      case Kind::List:
        break;
    }
    check(false, "has a list within a list, which is not supported");
  }
  Kind kind() {
    const auto kind = number<uint32_t>();
    check(kind <= static_cast<uint32_t>(Kind::F64), "has a value of unknown type ", kind);
    return static_cast<Kind>(kind);
  }
  GgufValue value() {
    GgufValue value{kind()};
    if (value.kind != Kind::List) {
      this->value(value.kind, value);
      return value;
    }
    value.is_list = true;
    value.kind = kind();
    const uint64_t size = count(static_cast<uint64_t>(min_bytes(value.kind)), "values of a list");
    if (value.kind == Kind::Text) value.texts.reserve(size);
    for (uint64_t i = 0; i < size; ++i) this->value(value.kind, value);
    check(value.kind != Kind::List, "has a list within a list, which is not supported");
    return value;
  }

 private:
  std::string_view bytes_;
  const std::string& path_;
  uint64_t position_ = 0;
};

/// Reads the entry of one tensor: name, shape, type and offset. The caller checks the offset.
GgufTensor read_tensor(Cursor& cursor) {
  GgufTensor tensor{cursor.text(), {}, nullptr};
  const auto dimensions = cursor.number<uint32_t>();
  const std::string shown = printable(tensor.name);
  cursor.check(dimensions >= 1 && dimensions <= 4, "the tensor ", shown, " has ", dimensions,
               " dimensions; they must be 1 to 4");
  uint64_t numbers = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = cursor.number<uint64_t>();
    // 2^60 elements of at most 8 bytes each fit 63 bits.
    cursor.check(size > 0 && size <= (uint64_t{1} << 60) / numbers, "the tensor ", shown,
                 " has a dimension of 0 or too many elements: ", size);
    numbers *= size;
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  const auto type = cursor.number<uint32_t>();
  tensor.type = gguf_type(type);
  cursor.check(tensor.type, "the tensor ", shown, " has unknown type ", type);
  cursor.check(tensor.shape.back() % tensor.type->block == 0, "the last dimension of the tensor ", shown,
               " must be divisible by ", tensor.type->block, ", the block size of type ", tensor.type->name, ": got ",
               tensor.shape.back());
  tensor.offset = cursor.number<uint64_t>();
  return tensor;
}

template <class T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& to, const std::string& text) {
  put<uint64_t>(to, text.size());
  to += text;
}

void put_integer(std::string& to, Kind kind, int64_t value) {
  switch (kind) {
    case Kind::U8:
    case Kind::I8:
    case Kind::Bool:
      return put(to, static_cast<uint8_t>(value));
    case Kind::U16:
    case Kind::I16:
      return put(to, static_cast<uint16_t>(value));
    case Kind::U32:
    case Kind::I32:
      return put(to, static_cast<uint32_t>(value));
    default:
      return put(to, value);
  }
}

void put_value(std::string& to, const GgufValue& value) {
  if (value.is_list) put(to, static_cast<uint32_t>(Kind::List));
  put(to, static_cast<uint32_t>(value.kind));
  if (value.is_list) put<uint64_t>(to, value.size());
  for (const int64_t integer : value.integers) put_integer(to, value.kind, integer);
  for (const double real : value.reals) value.kind == Kind::F32 ? put(to, static_cast<float>(real)) : put(to, real);
  for (const std::string& text : value.texts) put_text(to, text);
}

void put_row(std::string& to, const std::string& key, const GgufValue& value) {
  put_text(to, key);
  put_value(to, value);
}

constexpr char kFirst[] = "general.architecture";

}  // namespace

const GgufType* gguf_type(uint32_t id) {
  const auto found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const GgufType& t) { return t.id == id; });
  return found == std::end(kTypes) ? nullptr : found;
}

const GgufType* gguf_type(const std::string& name) {
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const GgufType& t) { return upper == t.name; });
  return found == std::end(kTypes) ? nullptr : found;
}

int64_t GgufTensor::numbers() const {
  int64_t numbers = 1;
  for (const int64_t size : shape) numbers *= size;
  return numbers;
}

GgufFile::GgufFile(const std::string& path) : path_(path), file_(MappedFile::open(path)) {
  Cursor cursor(file_->bytes(), path_);
  cursor.check(cursor.left() >= 4 && cursor.take(4) == "GGUF", "is not a GGUF file: it does not begin with GGUF");
  const auto version = cursor.number<uint32_t>();
  cursor.check(version < 0x10000, "is big-endian, which is not supported");
  cursor.check(version == 2 || version == 3, "must be of GGUF version 2 or 3: got ", version);
  const uint64_t tensors = cursor.count(24, "tensors"), values = cursor.count(13, "values");
  for (uint64_t i = 0; i < values; ++i) {
    std::string key = cursor.text();
    GgufValue value = cursor.value();
    cursor.check(values_.emplace(key, std::move(value)).second, "has the key ", printable(key), " twice");
  }
  const int64_t alignment = integer("general.alignment", 32);
  cursor.check(alignment >= 8 && alignment <= 1 << 20 && std::has_single_bit(static_cast<uint64_t>(alignment)),
               "general.alignment must be a power of two in [8, 1048576]: got ", alignment);
  std::set<std::string> names;
  for (uint64_t i = 0; i < tensors; ++i) {
    tensors_.push_back(read_tensor(cursor));
    cursor.check(names.insert(tensors_.back().name).second, "has the tensor ", printable(tensors_.back().name),
                 " twice");
  }
  const auto step = static_cast<uint64_t>(alignment);
  data_ = (cursor.position() + step - 1) / step * step;
  const uint64_t room = file_->bytes().size() > data_ ? file_->bytes().size() - data_ : 0;
  for (const GgufTensor& tensor : tensors_) {
    cursor.check(tensor.offset % step == 0, "the offset of the tensor ", printable(tensor.name),
                 " must be a multiple of the alignment ", alignment, ": got ", tensor.offset);
    const auto bytes = static_cast<uint64_t>(tensor.bytes());
    cursor.check(tensor.offset <= room && bytes <= room - tensor.offset, "the tensor ", printable(tensor.name),
                 " ends after the end of the file: it was cut off or damaged");
  }
}

const GgufValue& GgufFile::value(const std::string& key, bool is_list) const {
  const auto found = values_.find(key);
  require(found != values_.end(), kComponent, path_, ": has no ", key);
  require(found->second.is_list == is_list, kComponent, path_, ": ", key,
          is_list ? " must be a list" : " must be one value, not a list");
  return found->second;
}

const std::string& GgufFile::text(const std::string& key) const {
  const GgufValue& value = this->value(key, false);
  require(value.kind == Kind::Text, kComponent, path_, ": ", key, " must be a text");
  return value.texts.front();
}

int64_t GgufFile::integer(const std::string& key) const {
  const GgufValue& value = this->value(key, false);
  require(!value.integers.empty(), kComponent, path_, ": ", key, " must be an integer");
  return value.integers.front();
}

double GgufFile::real(const std::string& key) const {
  const GgufValue& value = this->value(key, false);
  if (!value.integers.empty()) return static_cast<double>(value.integers.front());
  require(!value.reals.empty() && std::isfinite(value.reals.front()), kComponent, path_, ": ", key,
          " must be a finite number");
  return value.reals.front();
}

std::string GgufFile::text(const std::string& key, const std::string& otherwise) const {
  return has(key) ? text(key) : otherwise;
}

int64_t GgufFile::integer(const std::string& key, int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}

const std::vector<std::string>& GgufFile::texts(const std::string& key) const {
  const GgufValue& value = this->value(key, true);
  require(value.kind == Kind::Text, kComponent, path_, ": ", key, " must be a list of texts");
  return value.texts;
}

const std::vector<int64_t>& GgufFile::integers(const std::string& key) const {
  const GgufValue& value = this->value(key, true);
  require(value.texts.empty() && value.reals.empty(), kComponent, path_, ": ", key, " must be a list of integers");
  return value.integers;
}

const std::vector<double>& GgufFile::reals(const std::string& key) const {
  const GgufValue& value = this->value(key, true);
  require(value.texts.empty() && value.integers.empty(), kComponent, path_, ": ", key, " must be a list of numbers");
  return value.reals;
}

std::string_view GgufFile::bytes(const GgufTensor& tensor) const {
  return file_->bytes().substr(data_ + tensor.offset, static_cast<size_t>(tensor.bytes()));
}

void GgufFile::leave(const GgufTensor& tensor) const { file_->leave(bytes(tensor)); }

bool GgufFile::is_in_memory(const GgufTensor& tensor) const { return file_->is_in_memory(bytes(tensor)); }

bool is_gguf(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none) || std::filesystem::file_size(path, none) < 4) return false;
  char magic[4];
  try {
    InputFile::open(path)->read(0, 4, magic);
  } catch (const Error&) {
    return false;
  }
  return std::memcmp(magic, "GGUF", 4) == 0;
}

GgufWriter::GgufWriter(const std::string& path, const GgufValues& values, std::vector<GgufTensor> tensors)
    : path_(path), tensors_(std::move(tensors)) {
  if (const auto given = values.find("general.alignment"); given != values.end())
    alignment_ = static_cast<uint64_t>(given->second.integers.at(0));
  require(alignment_ >= 8 && alignment_ <= 1 << 20 && std::has_single_bit(alignment_), "gguf", path,
          ": general.alignment must be a power of two in [8, 1048576]: got ", alignment_);
  std::string header = "GGUF";
  put<uint32_t>(header, 3);
  put<uint64_t>(header, tensors_.size());
  put<uint64_t>(header, values.size());
  if (const auto first = values.find(kFirst); first != values.end()) put_row(header, first->first, first->second);
  for (const auto& [key, value] : values)
    if (key != kFirst) put_row(header, key, value);
  uint64_t offset = 0;
  std::set<std::string> names;
  for (GgufTensor& tensor : tensors_) {
    require(names.insert(tensor.name).second, "gguf", path, ": duplicate tensor ", tensor.name);
    require(!tensor.shape.empty() && tensor.shape.size() <= 4 && tensor.numbers() > 0, "gguf", path, ": the tensor ",
            tensor.name, " must have 1 to 4 dimensions above 0");
    require(tensor.shape.back() % tensor.type->block == 0, "gguf", path, ": the last dimension of ", tensor.name,
            " must be divisible by ", tensor.type->block, ", the block size of type ", tensor.type->name, ": got ",
            tensor.shape.back());
    tensor.offset = offset;
    offset += (static_cast<uint64_t>(tensor.bytes()) + alignment_ - 1) / alignment_ * alignment_;
    put_text(header, tensor.name);
    put<uint32_t>(header, static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      put<uint64_t>(header, static_cast<uint64_t>(*size));
    put<uint32_t>(header, tensor.type->id);
    put<uint64_t>(header, tensor.offset);
  }
  header.resize((header.size() + alignment_ - 1) / alignment_ * alignment_);
  file_ = std::make_unique<AtomicFile>(path);
  file_->write(header);
}

GgufWriter::~GgufWriter() = default;

void GgufWriter::write(std::string_view blocks) {
  require(next_ < tensors_.size() && written_ == 0 && static_cast<int64_t>(blocks.size()) == tensors_[next_].bytes(),
          "gguf", path_, ": got ", blocks.size(), " bytes, which is not the size of ",
          next_ < tensors_.size() ? tensors_[next_].name : std::string("any remaining tensor"));
  write_part(blocks);
}

void GgufWriter::write_part(std::string_view blocks) {
  const int64_t left = next_ < tensors_.size() ? tensors_[next_].bytes() - written_ : 0;
  require(static_cast<int64_t>(blocks.size()) <= left, "gguf", path_, ": got ", blocks.size(), " bytes of a part of ",
          next_ < tensors_.size() ? tensors_[next_].name : std::string("no tensor"), ", of which ", left, " are left");
  file_->write(blocks);
  written_ += static_cast<int64_t>(blocks.size());
  if (static_cast<int64_t>(blocks.size()) < left) return;
  const uint64_t rest = static_cast<uint64_t>(written_) % alignment_;
  if (rest > 0) file_->write(std::string(alignment_ - rest, '\0'));
  written_ = 0;
  ++next_;
}

void GgufWriter::finish() {
  require(next_ == tensors_.size(), "gguf", path_, ": ", tensors_.size() - next_, " tensors were not written, ",
          next_ < tensors_.size() ? tensors_[next_].name : std::string(), " first");
  file_->commit();
}

}  // namespace colossal::formats
