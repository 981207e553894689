#include <bit>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/formats/gguf_file.h"

namespace colossal::formats {
namespace {

using Kind = GgufValue::Kind;

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
