#include "colossal/checkpoint/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/base/mapped_file.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;                  // limit of the reference implementation
constexpr JsonLimits kHeader{.depth = 3, .distinct_names = true};  // depth: object, tensor, list

struct DtypeName {
  const char* name;
  at::ScalarType dtype;
};
constexpr DtypeName kDtypes[] = {
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"U16", at::kUInt16},
    {"U32", at::kUInt32},
    {"U64", at::kUInt64},
    {"BOOL", at::kBool},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"C64", at::kComplexFloat},
};

at::ScalarType dtype_named(const std::string& name, const std::string& where) {
  for (const DtypeName& row : kDtypes)
    if (name == row.name) return row.dtype;
  throw Error("safetensors", concat(where, ": unknown dtype ", name));
}

/// Returns the bytes of a tensor; throws if their number does not fit 63 bits.
uint64_t bytes_of(const TensorEntry& entry, const std::string& where) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  bool fits = true;
  for (int64_t size : entry.shape)
    if (size != 0) fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
  require(fits, "safetensors", where, ": its shape overflows");
  const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

std::vector<uint64_t> unsigned_list(const json& row, const char* key, const std::string& where) {
  const auto found = row.find(key);
  require(found != row.end() && found->is_array(), "safetensors", where, ": ", key, " must be a list");
  std::vector<uint64_t> values;
  for (const json& value : *found) {
    require(value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX}, "safetensors", where, ": ", key,
            " must hold whole numbers below 2^63: got ", value.dump());
    values.push_back(value.get<uint64_t>());
  }
  return values;
}

TensorEntry parse_entry(const std::string& name, const json& row, const std::string& path) {
  const std::string where = path + ": tensor " + name;
  require(row.is_object(), "safetensors", where, ": must be a JSON object");
  const auto dtype = row.find("dtype");
  require(dtype != row.end() && dtype->is_string(), "safetensors", where, ": dtype must be a string");
  TensorEntry entry{name, dtype_named(dtype->get<std::string>(), where), {}};
  for (uint64_t size : unsigned_list(row, "shape", where)) entry.shape.push_back(static_cast<int64_t>(size));
  const std::vector<uint64_t> offsets = unsigned_list(row, "data_offsets", where);
  require(offsets.size() == 2 && offsets[0] <= offsets[1], "safetensors", where, ": data_offsets must be [begin, end]");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  const uint64_t wanted = bytes_of(entry, where);
  require(entry.end - entry.begin == wanted, "safetensors", where, ": its shape and dtype need ", wanted,
          " bytes: got ", entry.end - entry.begin);
  return entry;
}

/// The tensors must tile the data: a byte must not have two meanings, and no byte may be unused.
void check_tiling(const std::map<std::string, TensorEntry>& entries, uint64_t size, const std::string& path) {
  std::vector<const TensorEntry*> order;
  for (const auto& [name, entry] : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  uint64_t end = 0;
  for (const TensorEntry* entry : order) {
    require(entry->end <= size, "safetensors", path, ": tensor ", entry->name, " ends at byte ", entry->end, " of ",
            size, " (truncated file?)");
    require(entry->begin >= end, "safetensors", path, ": tensor ", entry->name, " overlaps the one before it");
    require(entry->begin == end, "safetensors", path, ": there is a gap before tensor ", entry->name);
    end = entry->end;
  }
  require(end == size, "safetensors", path, ": ", size - end, " bytes follow the last tensor");
}

at::Tensor view_of(const TensorEntry& entry, const char* bytes, std::shared_ptr<const MappedFile> file) {
  const auto options = at::TensorOptions().dtype(entry.dtype);
  const auto address = reinterpret_cast<uintptr_t>(bytes);
  if (entry.begin == entry.end) return at::empty(entry.shape, options);
  if (address % c10::elementSize(entry.dtype) == 0) {
    const auto keep = [file = std::move(file)](void*) {};
    return at::from_blob(const_cast<char*>(bytes), entry.shape, keep, options);
  }
  at::Tensor copy = at::empty(entry.shape, options);
  std::memcpy(copy.mutable_data_ptr(), bytes, entry.end - entry.begin);
  return copy;
}

bool has_larger_elements(const TensorEntry& a, const TensorEntry& b) {
  return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path), file_(MappedFile::open(path)) {
  const std::string_view bytes = file_->bytes();
  require(bytes.size() >= 8, "safetensors", path, ": must hold at least 8 bytes: got ", bytes.size());
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  require(length <= kMaxHeaderBytes, "safetensors", path, ": the header may have at most 100 MB: got ", length,
          " bytes");
  require(length <= bytes.size() - 8, "safetensors", path, ": the header has ", length, " bytes, the file only ",
          bytes.size() - 8, " after its length (truncated file?)");
  const json header = parse_json_object(bytes.substr(8, length), path + ": the header", "safetensors", kHeader);
  data_ = bytes.substr(8 + length);
  for (const auto& [name, row] : header.items()) {
    if (name != "__metadata__") {
      entries_.emplace(name, parse_entry(name, row, path));
      continue;
    }
    require(row.is_object(), "safetensors", path, ": __metadata__ must be a JSON object");
    for (const auto& [key, value] : row.items()) {
      require(value.is_string(), "safetensors", path, ": __metadata__ must map strings to strings: got ", key);
      metadata_.emplace(key, value.get<std::string>());
    }
  }
  check_tiling(entries_, data_.size(), path);
}

const TensorEntry& SafetensorsReader::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  require(found != entries_.end(), "safetensors", path_, ": no tensor named ", name);
  return found->second;
}

at::Tensor SafetensorsReader::tensor(const std::string& name) const {
  const TensorEntry& found = entry(name);
  return view_of(found, data_.data() + found.begin, file_);
}

std::string_view SafetensorsReader::bytes(const std::string& name) const {
  const TensorEntry& found = entry(name);
  return data_.substr(found.begin, found.end - found.begin);
}

void SafetensorsReader::leave(const std::string& name) const { file_->leave(bytes(name)); }

bool SafetensorsReader::is_in_memory(const std::string& name) const { return file_->is_in_memory(bytes(name)); }

std::string safetensors_dtype(at::ScalarType dtype) {
  for (const DtypeName& row : kDtypes)
    if (dtype == row.dtype) return row.name;
  throw Error("safetensors", concat("the format has no dtype ", c10::toString(dtype)));
}

void sort_entries(std::vector<TensorEntry>& entries) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  std::stable_sort(entries.begin(), entries.end(), has_larger_elements);
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorEntry> entries,
                                     const std::map<std::string, std::string>& metadata, Order order)
    : path_(path), entries_(std::move(entries)) {
  if (order == Order::ByName)
    sort_entries(entries_);
  else
    std::stable_sort(entries_.begin(), entries_.end(), has_larger_elements);
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t end = 0;
  for (TensorEntry& entry : entries_) {
    require(!header.contains(entry.name) && entry.name != "__metadata__", "safetensors", path,
            ": two tensors are named ", entry.name);
    entry.begin = end;
    entry.end = end += bytes_of(entry, path + ": tensor " + entry.name);
    header[entry.name] = {
        {"dtype", safetensors_dtype(entry.dtype)}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  require(text.size() <= kMaxHeaderBytes, "safetensors", path, ": too many tensors for one file: a header of ",
          text.size(), " bytes");
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  file_ = std::make_unique<AtomicFile>(path);
  file_->write(length + text);
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const at::Tensor& value) {
  require(next_ < entries_.size(), "safetensors", path_, ": all ", entries_.size(), " tensors are written already");
  const TensorEntry& entry = entries_[next_++];
  require(value.scalar_type() == entry.dtype && value.sizes() == at::IntArrayRef(entry.shape), "safetensors", path_,
          ": tensor ", entry.name, " was declared as ", entry.dtype, at::IntArrayRef(entry.shape), ": got ",
          value.scalar_type(), value.sizes());
  const at::Tensor host = value.detach().to(at::kCPU).contiguous();
  file_->write(host.const_data_ptr(), host.nbytes());
}

void SafetensorsWriter::finish() {
  require(next_ == entries_.size(), "safetensors", path_, ": ", entries_.size() - next_, " tensors were not written");
  file_->commit();
}

void write_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, value] : tensors) entries.push_back({name, value.scalar_type(), value.sizes().vec()});
  SafetensorsWriter writer(path, std::move(entries), metadata);
  for (const TensorEntry& entry : writer.entries()) writer.write(tensors.at(entry.name));
  writer.finish();
}

}  // namespace colossal::checkpoint
