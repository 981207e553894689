// Stands in for zip_file.cpp in a build without libzip.
#include "colossal/base/error.h"
#include "colossal/formats/zip_file.h"

namespace colossal::formats {

struct ZipFile::State {};

bool reads_zips() { return false; }

ZipFile::ZipFile(const std::string& path) {
  throw Error("zip",
              concat(path, " is a zip file, which this build does not read; install libzip-dev and build again"));
}

ZipFile::~ZipFile() = default;

void ZipFile::read(const ZipMember&, uint64_t, uint64_t, void*) const {}

}  // namespace colossal::formats
