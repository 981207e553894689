// Stands in for tar.cpp in a build without libarchive.
#include "colossal/base/error.h"
#include "colossal/data/pictures/tar.h"

namespace colossal::data {

bool reads_tars() { return false; }

void list_tar(const InputFile& file, const std::function<void(const TarMember&)>&) {
  throw Error("data", concat(file.path(), " is a tar file, which this build does not read; install libarchive-dev and ",
                             "build again, or unpack the file"));
}

}  // namespace colossal::data
