#include "colossal/align/rollouts/appended_records.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"

namespace colossal::align {
namespace {

constexpr char kDamageRemedy[] = "; delete the file, and a resumed run draws its answers again";
constexpr std::string_view kRecordsMagic = "colossal rollouts 1\n";

/// The header of a record. The complement tells a length from other bytes, so that a search for records behind damage
/// does not compute a checksum at each byte.
struct RecordHeader {
  uint32_t length = 0, complement = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(RecordHeader) == 16);

/// Returns the record whose header begins at `byte`; nothing if there is no intact one.
std::optional<std::string_view> record_at(std::string_view bytes, size_t byte) {
  RecordHeader header;
  if (bytes.size() - byte < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data() + byte, sizeof header);
  if (header.length == 0 || header.complement != ~header.length) return std::nullopt;
  if (bytes.size() - byte - sizeof header < header.length) return std::nullopt;
  const std::string_view record = bytes.substr(byte + sizeof header, header.length);
  if (checksum_number(record.data(), record.size()) != header.checksum) return std::nullopt;
  return record;
}

/// Refuses damage at `byte` that is not the end of the file. A kill cuts off the last record alone, so an intact record
/// after the damage means that stored bytes have changed.
void require_end(const std::string& path, std::string_view bytes, size_t byte) {
  for (size_t next = byte + 1; next < bytes.size(); ++next)
    require(!record_at(bytes, next), "rollouts", path, " is damaged at byte ", byte,
            ": the record there must have its checksum, and an intact record follows at byte ", next, kDamageRemedy);
}

/// Creates a file. Returns -1, with errno, if that fails.
int created(const std::string& path) { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }

}  // namespace

AppendedRecords::AppendedRecords(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {
  require(descriptor_ >= 0, "rollouts", "cannot create ", path_, ": ", std::strerror(errno));
}

AppendedRecords::AppendedRecords(std::string path) : AppendedRecords(path, created(path)) {}

std::unique_ptr<AppendedRecords> AppendedRecords::unless_exists(std::string path) {
  const int descriptor = created(path);
  if (descriptor < 0 && errno == EEXIST) return nullptr;
  return std::unique_ptr<AppendedRecords>(new AppendedRecords(std::move(path), descriptor));
}

AppendedRecords::~AppendedRecords() { ::close(descriptor_); }

void AppendedRecords::append(std::string_view record) {
  require(!record.empty() && record.size() <= std::numeric_limits<uint32_t>::max(), "rollouts",
          "a record must have 1 byte to 4 GiB: got ", record.size());
  const auto length = static_cast<uint32_t>(record.size());
  const RecordHeader header{length, ~length, checksum_number(record.data(), record.size())};
  std::string bytes(end_ == 0 ? kRecordsMagic : "");
  bytes.append(reinterpret_cast<const char*>(&header), sizeof header).append(record);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t taken =
        ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done, end_ + static_cast<int64_t>(done));
    if (taken < 0 && errno == EINTR) continue;
    const int error = errno;
    // If the file cannot be cut, the next record overwrites what was written of this one, and readers ignore the rest.
    const bool is_cut = taken < 0 && ::ftruncate(descriptor_, end_) == 0;
    (void)is_cut;
    require(taken >= 0, "rollouts", "cannot write to ", path_, ": ", std::strerror(error));
    done += static_cast<size_t>(taken);
  }
  end_ += static_cast<int64_t>(bytes.size());
}

void read_appended(const std::string& path, const std::function<void(std::string_view record, int64_t byte)>& take) {
  const std::string bytes = read_file(path, std::numeric_limits<int64_t>::max());
  if (kRecordsMagic.starts_with(bytes)) return;  // a kill or a full disk left no record
  require(bytes.starts_with(kRecordsMagic), "rollouts", path, " must begin with the line \"colossal rollouts 1\": got ",
          "another file, or one of another version", kDamageRemedy);
  for (size_t byte = kRecordsMagic.size(); byte < bytes.size();) {
    const auto record = record_at(bytes, byte);
    if (!record) return require_end(path, bytes, byte);
    take(*record, static_cast<int64_t>(byte));
    byte += sizeof(RecordHeader) + record->size();
  }
}

}  // namespace colossal::align
