#include "colossal/report/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::report {
namespace {

/// Appends all of `bytes`. If that fails, it truncates the file to its old size where possible.
bool append(int descriptor, std::string_view bytes) {
  const off_t before = ::lseek(descriptor, 0, SEEK_END);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t taken = ::write(descriptor, bytes.data() + done, bytes.size() - done);
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) {
      const int error = errno;
      // Truncation fails on a device, which keeps no partial records.
      const bool cut = before >= 0 && ::ftruncate(descriptor, before) == 0;
      (void)cut;
      errno = error;
      return false;
    }
    done += static_cast<size_t>(taken);
  }
  return true;
}

}  // namespace

RecordFile::RecordFile(std::string path, const char* component, bool anew)
    : path_(std::move(path)), component_(component) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (anew ? O_TRUNC : 0), 0666);
  require(descriptor_ >= 0, component_, "cannot open ", path_, ": ", std::strerror(errno));
}

RecordFile::~RecordFile() {
  append(descriptor_, pending_);  // last attempt to write pending records
  ::close(descriptor_);
}

void RecordFile::add(std::string_view record) {
  if (pending_.size() + record.size() > kMaxPendingBytes) {
    ++dropped_;
  } else {
    pending_ += record;
  }
}

void RecordFile::flush() {
  const bool written = append(descriptor_, pending_);
  require(written, component_, "cannot write to ", path_, ": ", std::strerror(errno));
  pending_.clear();
  const int64_t lost = std::exchange(dropped_, 0);
  require(lost == 0, component_, path_, " can be written again, but the queue was full: ", lost, " records are lost");
}

}  // namespace colossal::report
