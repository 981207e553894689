#include "colossal/formats/torch_file.h"

#include <cstring>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/input_file.h"
#include "colossal/base/json_file.h"
#include "colossal/base/mapped_file.h"
#include "colossal/formats/pickle.h"
#include "colossal/formats/torch_table.h"

namespace colossal::formats {
namespace {

constexpr char kTorchFile[] = "torch file";
constexpr uint64_t kMaxPickleBytes = uint64_t{1} << 28;
/// The number with which the older form begins, as bytes of a pickle.
constexpr std::string_view kOldMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// Returns the folder of a zip file in which torch.save has put its members, with "/" at the end; "" = there is none.
std::string folder_in(const ZipFile& zip) {
  constexpr std::string_view kPickle = "/data.pkl";
  for (const ZipMember& member : zip.members())
    if (member.name.ends_with(kPickle) && member.name.find('/') == member.name.size() - kPickle.size())
      return member.name.substr(0, member.name.size() - kPickle.size() + 1);
  return "";
}

/// The start of the older form has three pickles: a magic number, a version and facts of the system.
void check_old_start(std::string_view& rest, const std::string& path) {
  const Pickle magic = read_pickle(rest, path), version = read_pickle(rest, path), system = read_pickle(rest, path);
  require(magic.root().kind == PickleValue::Kind::BigInteger && magic.root().text == kOldMagic &&
              version.root().kind == PickleValue::Kind::Integer,
          kTorchFile, path, " must begin as a file of torch.save: got other numbers");
  const PickleValue* is_little = system.find(system.root(), "little_endian");
  require(is_little == nullptr || is_little->kind != PickleValue::Kind::Bool || is_little->integer == 1, kTorchFile,
          path, " must be little-endian; load it in Python and save it again");
}

/// Where a storage of the older form is in the file.
struct OldStorage {
  uint64_t element_bytes = 0;
  uint64_t number = 0, bytes = 0;  // set after its bytes were found
  bool is_found = false;
};

/// Returns the storages that a pickle refers to, by their keys.
std::map<std::string, OldStorage> old_storages(const Pickle& pickle, const std::string& path) {
  std::map<std::string, OldStorage> all;
  for (const PickleValue& value : pickle.values()) {
    if (value.kind != PickleValue::Kind::External) continue;
    const TorchStorage storage = read_torch_storage(pickle, value, path);
    const auto [found, is_new] = all.emplace(storage.key, OldStorage{storage.element_bytes()});
    require(is_new || found->second.element_bytes == storage.element_bytes(), kTorchFile, path,
            " must have one type for the storage ", printable(storage.key), ": got two");
  }
  return all;
}

}  // namespace

bool is_torch_file(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return false;
  try {
    constexpr int64_t kStart = 32;
    if (is_zip(path)) return reads_zips() && !folder_in(ZipFile(path)).empty();
    const std::string start = InputFile::open(path)->start(kStart);
    return start.starts_with('\x80') && start.find(kOldMagic) != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

TorchFile::TorchFile(const std::string& path) : path_(path) { is_zip(path) ? open_zip() : open_old(); }

TorchFile::~TorchFile() = default;

void TorchFile::open_zip() {
  zip_ = std::make_unique<ZipFile>(path_);
  const std::string folder = folder_in(*zip_);
  require(!folder.empty(), kTorchFile, path_, " must be a file of torch.save: got a zip file without data.pkl");
  require(zip_->find(folder + "constants.pkl") == nullptr, kTorchFile, path_,
          " must be a file of torch.save: got one of TorchScript; save its state_dict() with torch.save");
  constexpr uint64_t kMaxWord = 64;
  if (const ZipMember* order = zip_->find(folder + "byteorder"))
    require(zip_->content(*order, kMaxWord) == "little", kTorchFile, path_,
            " must be little-endian; load it in Python and save it again");
  const std::string bytes = zip_->content(*zip_->find(folder + "data.pkl"), kMaxPickleBytes);
  std::string_view rest = bytes;
  const Pickle pickle = read_pickle(rest, path_);
  std::map<std::string, const ZipMember*> members;
  for (const ZipMember& member : zip_->members()) members[member.name] = &member;
  for (const auto& [name, tensor] : read_torch_table(pickle, path_)) {
    const auto found = members.find(concat(folder, "data/", tensor.storage.key));
    require(found != members.end(), kTorchFile, path_, ": ", printable(name), " must have the storage ",
            printable(tensor.storage.key), ": got none");
    const ZipMember& member = *found->second;
    require(member.size / tensor.storage.element_bytes() == tensor.storage.count, kTorchFile, path_,
            ": the storage of ", printable(name), " must have ", tensor.storage.count, " elements: got ", member.size,
            " bytes");
    add(name, tensor, static_cast<uint64_t>(&member - zip_->members().data()), member.size);
  }
}

void TorchFile::open_old() {
  file_ = MappedFile::open(path_);
  const std::string_view bytes = file_->bytes();
  require(bytes.starts_with('\x80'), kTorchFile, path_,
          " must be a file of torch.save: got bytes that do not begin as one; name a file of weights");
  std::string_view rest = bytes;
  check_old_start(rest, path_);
  std::string_view head = rest.substr(0, kMaxPickleBytes);
  const size_t before = head.size();
  const Pickle pickle = read_pickle(head, path_), keys = read_pickle(head, path_);
  rest.remove_prefix(before - head.size());
  std::map<std::string, OldStorage> storages = old_storages(pickle, path_);
  for (const PickleId id : keys.root().items) {
    const auto found = storages.find(keys[id].text);
    require(found != storages.end() && !found->second.is_found, kTorchFile, path_, " must have each storage once: got ",
            printable(keys[id].text));
    uint64_t count = 0, size = 0;
    require(rest.size() >= sizeof count, kTorchFile, path_, " ends before the storage ", printable(found->first),
            " (truncated file?)");
    std::memcpy(&count, rest.data(), sizeof count);
    rest.remove_prefix(sizeof count);
    require(!__builtin_mul_overflow(count, found->second.element_bytes, &size) && size <= rest.size(), kTorchFile,
            path_, " ends within the storage ", printable(found->first), ", of ", count, " elements (truncated file?)");
    found->second = {found->second.element_bytes, offsets_.size(), size, true};
    offsets_.push_back(bytes.size() - rest.size());
    rest.remove_prefix(size);
  }
  for (const auto& [name, tensor] : read_torch_table(pickle, path_)) {
    const OldStorage& storage = storages.at(tensor.storage.key);
    require(storage.is_found, kTorchFile, path_, ": ", printable(name), " must have the storage ",
            printable(tensor.storage.key), ": got none");
    add(name, tensor, storage.number, storage.bytes);
  }
}

void TorchFile::add(const std::string& name, const TorchTensor& tensor, uint64_t storage, uint64_t storage_bytes) {
  const std::string where = concat(path_, ": ", printable(name));
  const uint64_t element_bytes = tensor.storage.element_bytes(), count = storage_bytes / element_bytes;
  const TorchStorage& part = tensor.storage;
  require(part.first <= count && part.count <= count - part.first, kTorchFile, where,
          " must be in a part of its storage: got ", part.count, " elements from ", part.first, " on, of ", count);
  StridedTensor place = tensor.place;
  check_tensor(place, part.count * element_bytes, kTorchFile, where);
  place.storage = storage;
  place.begin += part.first * element_bytes;
  tensors_.emplace(name, std::move(place));
}

void TorchFile::read(const StridedTensor& tensor, void* out) const {
  const auto bytes = static_cast<uint64_t>(tensor.span() * bytes_of(tensor.type));
  if (zip_) return zip_->read(zip_->members().at(tensor.storage), tensor.begin, bytes, out);
  std::memcpy(out, file_->bytes().data() + offsets_.at(tensor.storage) + tensor.begin, bytes);
}

}  // namespace colossal::formats
