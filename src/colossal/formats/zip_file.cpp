#include "colossal/formats/zip_file.h"

#include <zip.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <mutex>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/input_file.h"
#include "colossal/base/json_file.h"

namespace colossal::formats {
namespace {

constexpr char kZip[] = "zip";
/// Deflate writes at most 258 bytes for 2 bits, and a member has some bytes around them.
constexpr uint64_t kMaxDeflateRatio = 1032;

using ZipReading = std::unique_ptr<zip_file_t, int (*)(zip_file_t*)>;

/// Checks the directory's entry of a member, of which libzip has read only whether its header is whole.
ZipMember checked_member(const zip_stat_t& about, uint64_t file_bytes, const std::string& path) {
  constexpr zip_uint64_t kNeeded =
      ZIP_STAT_NAME | ZIP_STAT_INDEX | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
  require((about.valid & kNeeded) == kNeeded, kZip, path,
          " must have names and sizes of its members: got an entry without");
  const std::string name = about.name;
  const bool is_stored = about.comp_method == ZIP_CM_STORE;
  require(is_stored || about.comp_method == ZIP_CM_DEFLATE, kZip, path, ": ", printable(name),
          " must be stored or deflated: got method ", about.comp_method, "; write the file again");
  require((about.valid & ZIP_STAT_ENCRYPTION_METHOD) == 0 || about.encryption_method == ZIP_EM_NONE, kZip, path, ": ",
          printable(name), " must have no password; write the file without one");
  require(about.comp_size <= file_bytes, kZip, path, ": ", printable(name), " has ", about.comp_size,
          " bytes in a file of ", file_bytes, " (truncated file?)");
  require(is_stored ? about.size == about.comp_size : about.size / kMaxDeflateRatio <= about.comp_size, kZip, path,
          ": ", printable(name), " must have a size that its bytes can have: got ", about.size, " of ",
          about.comp_size);
  return {name, about.size, about.index, is_stored};
}

}  // namespace

struct ZipFile::State {
  std::unique_ptr<zip_t, void (*)(zip_t*)> archive{nullptr, zip_discard};
  std::mutex mutex;  // libzip's objects may not be used by two threads at once
};

bool reads_zips() { return true; }

ZipFile::ZipFile(const std::string& path) : path_(path), state_(std::make_unique<State>()) {
  const auto file_bytes = static_cast<uint64_t>(InputFile::open(path)->size());
  int code = 0;
  state_->archive.reset(zip_open(path.c_str(), ZIP_RDONLY, &code));
  if (!state_->archive) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const std::string why = zip_error_strerror(&error);
    zip_error_fini(&error);
    throw Error(kZip, concat(path, " is no zip file or is damaged: ", why, " (truncated file?)"));
  }
  const zip_int64_t count = zip_get_num_entries(state_->archive.get(), 0);
  std::set<std::string> names;
  for (zip_int64_t i = 0; i < count; ++i) {
    zip_stat_t about;
    zip_stat_init(&about);
    require(zip_stat_index(state_->archive.get(), static_cast<zip_uint64_t>(i), ZIP_FL_ENC_RAW, &about) == 0, kZip,
            path, " is damaged: ", zip_strerror(state_->archive.get()));
    members_.push_back(checked_member(about, file_bytes, path));
    require(names.insert(members_.back().name).second, kZip, path, ": ", printable(members_.back().name),
            " must be there once: got two");
  }
}

ZipFile::~ZipFile() = default;

void ZipFile::read(const ZipMember& member, uint64_t begin, uint64_t count, void* out) const {
  require(begin <= member.size && count <= member.size - begin, kZip, path_, ": bytes must be within ",
          printable(member.name), ": got ", begin, " to ", begin + count, " of ", member.size);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const ZipReading file(zip_fopen_index(state_->archive.get(), member.index, 0), zip_fclose);
  require(file != nullptr, kZip, path_, ": ", printable(member.name),
          " is damaged: ", zip_strerror(state_->archive.get()));
  const auto check = [&](bool ok) {
    require(ok, kZip, path_, ": ", printable(member.name), " is damaged: ", zip_file_strerror(file.get()),
            " (truncated file?)");
  };
  const auto take = [&](char* to, uint64_t bytes) {
    while (bytes > 0) {
      const zip_int64_t got = zip_fread(file.get(), to, std::min<uint64_t>(bytes, 1 << 30));
      check(got > 0);
      to += got;
      bytes -= static_cast<uint64_t>(got);
    }
  };
  if (member.is_stored && begin > 0) {
    check(begin <= std::numeric_limits<int64_t>::max() &&
          zip_fseek(file.get(), static_cast<zip_int64_t>(begin), SEEK_SET) == 0);
  } else {
    std::string skipped(std::min<uint64_t>(begin, 1 << 16), '\0');
    for (uint64_t left = begin; left > 0; left -= std::min<uint64_t>(left, skipped.size()))
      take(skipped.data(), std::min<uint64_t>(left, skipped.size()));
  }
  take(static_cast<char*>(out), count);
  char more = 0;  // libzip compares the checksum when it finds the end
  if (begin == 0 && count == member.size) check(zip_fread(file.get(), &more, 1) == 0);
}

}  // namespace colossal::formats
