#include "colossal/base/text_start.h"

#include <algorithm>
#include <iterator>

#include "colossal/base/error.h"
#include "colossal/base/input_file.h"

namespace colossal {
namespace {

using namespace std::string_view_literals;

/// A format that is not text. In the message, `remedy` follows `name`.
struct BinaryFormat {
  std::string_view bytes;
  const char* name;
  const char* remedy;
  size_t at = 0;  ///< offset of `bytes` in the file
};

constexpr const char* kUnpack = "unpack it first; only JSON lines (.jsonl.gz, .jsonl.zst) are read compressed";
constexpr const char* kArrow =
    "convert it to Parquet, for instance in Python with datasets.Dataset.from_file(PATH).to_parquet(\"x.parquet\")";
constexpr const char* kPicture = "image models read pictures from one folder per class";
constexpr const char* kUtf16 = "convert it, for instance with iconv -f UTF-16 -t UTF-8";

constexpr BinaryFormat kFormats[] = {
    {"\x1f\x8b"sv, "a gzip file", kUnpack},
    {"\x28\xb5\x2f\xfd"sv, "a Zstandard file", kUnpack},
    {"\xfd"
     "7zXZ\0"sv,
     "an xz file", kUnpack},
    {"1AY&SY"sv, "a bzip2 file", kUnpack, 4},
    {"7z\xbc\xaf\x27\x1c"sv, "a 7-Zip archive", kUnpack},
    {"\x04\x22\x4d\x18"sv, "an LZ4 file", kUnpack},
    {"PK\x03\x04"sv, "a zip archive", kUnpack},
    {"ustar"sv, "a tar archive", kUnpack, 257},
    {"PAR1"sv, "a Parquet file", "rename it so that its name ends in .parquet"},
    {"ARROW1\0"sv, "an Arrow file", kArrow},
    {"\xff\xff\xff\xff"sv, "an Arrow stream", kArrow},
    {"%PDF-"sv, "a PDF", "extract its text, for instance with pdftotext"},
    {"\x89PNG\r\n"sv, "a PNG picture", kPicture},
    {"\xff\xd8\xff"sv, "a JPEG picture", kPicture},
    {"GIF87a"sv, "a GIF picture", kPicture},
    {"GIF89a"sv, "a GIF picture", kPicture},
    {"WEBPVP8"sv, "a WebP picture", kPicture, 8},
    {"\xff\xfe"sv, "UTF-16 text", kUtf16},
    {"\xfe\xff"sv, "UTF-16 text", kUtf16},
};

/// Returns the format of a file that begins with `start`; null = none of the table.
const BinaryFormat* binary_format_of(std::string_view start) {
  const auto* found = std::find_if(std::begin(kFormats), std::end(kFormats), [&](const BinaryFormat& format) {
    return start.size() >= format.at && start.substr(format.at).starts_with(format.bytes);
  });
  return found == std::end(kFormats) ? nullptr : found;
}

bool has_zeros(std::string_view start) { return start.substr(0, kTextStart).find('\0') != std::string_view::npos; }

}  // namespace

std::optional<std::string> other_format(std::string_view start) {
  if (const BinaryFormat* format = binary_format_of(start)) return format->name;
  return has_zeros(start) ? std::optional<std::string>("bytes of value 0") : std::nullopt;
}

std::optional<std::string> other_format_of_file(const std::string& path) {
  return other_format(InputFile::open(path)->start(kTextStart));
}

void require_text(std::string_view start, const std::string& path, const char* component) {
  if (const BinaryFormat* format = binary_format_of(start))
    throw Error(component, concat(path, " must be a text file: got ", format->name, "; ", format->remedy));
  require(!has_zeros(start), component, path, " must be a text file: got bytes of value 0; convert it to UTF-8");
}

void require_text_file(const std::string& path, const char* component) {
  require_text(InputFile::open(path)->start(kTextStart), path, component);
}

}  // namespace colossal
