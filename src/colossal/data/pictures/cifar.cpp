#include <ATen/ATen.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/data/pictures/image_samples.h"
#include "colossal/data/streams/unpacked_file.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 32, kChannels = 3, kClasses = 10;
constexpr int64_t kPixels = kChannels * kSide * kSide, kRecord = 1 + kPixels;
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

const char* const kAdvice =
    "; get CIFAR-10's binary version from https://www.cs.toronto.edu/~kriz/cifar.html and set data.path to the folder "
    "with data_batch_1.bin .. data_batch_5.bin and test_batch.bin (.bin.gz is read too), or to builtin-shapes, which "
    "needs no files";

/// Returns the paths by their names without .gz, and thus in the order of these names.
std::map<std::string, std::string> files_of(const std::string& folder, const std::string& start) {
  std::error_code failed;
  require(fs::is_directory(folder, failed), "data", "no such folder of images: data.path = ", folder, kAdvice);
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    const std::string name = file.ends_with(".gz") ? file.substr(0, file.size() - 3) : file;
    if (!name.starts_with(start) || !name.ends_with(".bin")) continue;
    require(files.emplace(name, entry.path().string()).second, "data", folder, " holds ", name,
            " twice, uncompressed and as .gz; remove one");
  }
  require(!files.empty(), "data", folder, " holds no ", start, "*.bin", kAdvice);
  return files;
}

void check_file(const std::string& path, const std::string& bytes) {
  const int64_t length = static_cast<int64_t>(bytes.size());
  require(length > 0 && length % kRecord == 0, "data", path, " must hold whole records of ", kRecord, " bytes (label, ",
          kPixels, " pixels): got ", length, " bytes; it is cut short or not a binary file of CIFAR-10");
  for (int64_t record = 0; record * kRecord < length; ++record) {
    const int label = static_cast<unsigned char>(bytes[record * kRecord]);
    require(label < kClasses, "data", path, ": image ", record, " has label ", label,
            ", CIFAR-10 only 0 to 9; is it another data set?");
  }
}

}  // namespace

bool is_cifar(const std::string& folder) {
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("data_batch") && (name.ends_with(".bin") || name.ends_with(".bin.gz"))) return true;
  }
  return false;
}

ImageSet read_cifar(const std::string& folder, CifarPart part) {
  std::vector<std::string> contents;
  int64_t count = 0;
  Checksum checksum;
  for (const auto& [name, path] : files_of(folder, part == CifarPart::Training ? "data_batch" : "test_batch")) {
    contents.push_back(read_unpacked(path, kMaxFileBytes));
    check_file(path, contents.back());
    checksum.update(contents.back().data(), contents.back().size());
    count += static_cast<int64_t>(contents.back().size()) / kRecord;
  }
  ImageSet set{.pixels = at::empty({count, kChannels, kSide, kSide}, at::kByte),
               .labels = at::empty({count}, at::kLong),
               .classes = kClasses,
               .mean = {kCifarMean.begin(), kCifarMean.end()},
               .deviation = {kCifarDeviation.begin(), kCifarDeviation.end()},
               .fingerprint = checksum.hex()};
  auto* pixels = set.pixels.mutable_data_ptr<uint8_t>();
  auto* labels = set.labels.mutable_data_ptr<int64_t>();
  for (const std::string& content : contents) {
    for (size_t at = 0; at < content.size(); at += kRecord, pixels += kPixels) {
      *labels++ = static_cast<unsigned char>(content[at]);
      std::memcpy(pixels, content.data() + at + 1, kPixels);
    }
  }
  return set;
}

}  // namespace colossal::data
