// Files of JSON lines, plain and packed, whole and damaged: the records that are read, and the errors.
#include "colossal/data/streams/json_lines.h"

#include <gmock/gmock.h>
#include <zstd.h>

#include <filesystem>
#include <random>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/data/streams/record_lines.h"
#include "colossal/data/streams/record_mix.h"
#include "support/cifar_folder.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::json_lines_test {
namespace {

using testing::HasSubstr;

struct Found {
  std::vector<nlohmann::json> records;
  std::string error;
};

/// Reads records until the first error.
Found read(const std::string& path, int64_t longest = 1 << 28) {
  Found found;
  try {
    LineReader lines(path, longest);
    for (std::string line; lines.next(line);) {
      const int64_t number = lines.position().lines;
      require(!lines.is_cut(), "data", path, ":", number, ": too long");
      if (!is_blank(line)) found.records.push_back(parse_json_line(line, path, number));
    }
  } catch (const Error& error) {
    found.error = error.message();
  }
  return found;
}

std::string pack(const std::string& text, int checksum = 1) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum);
  packed.resize(ZSTD_compress2(context, packed.data(), packed.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return packed;
}

std::string records(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += "{\"text\": \"record " + std::to_string(i * 7919 % 1000) + "\"}\n";
  return text;
}

TEST(JsonLines, ReadsOrRefusesOddFilesAsExpected) {
  const std::string folder = test::source_dir() + "/../shared/data/jsonl";
  if (!std::filesystem::exists(folder + "/expected.json")) GTEST_SKIP() << "no " << folder;
  // The numbers of records of files that other readers read further. This reader accepts only objects, and no number
  // that a double cannot hold.
  const std::map<std::string, int64_t> stricter = {
      {"not-objects.jsonl", 0}, {"number-overflow.jsonl", 1}, {"array.json", 0}};
  const nlohmann::json expected = read_json_object(folder + "/expected.json", "test");
  EXPECT_EQ(expected.size(), 58u);
  for (const auto& [name, want] : expected.items()) {
    SCOPED_TRACE(name);
    const Found got = read(folder + "/" + name);
    if (const auto own = stricter.find(name); own != stricter.end()) {
      EXPECT_EQ(got.records.size(), own->second);
      EXPECT_THAT(got.error, HasSubstr(name + ":" + std::to_string(own->second + 1)));
      continue;
    }
    if (want["records"].is_number()) EXPECT_EQ(got.records.size(), want["records"].get<size_t>()) << got.error;
    EXPECT_EQ(!got.error.empty(), want.contains("error")) << got.error;
    if (want.contains("error")) EXPECT_THAT(got.error, HasSubstr(name));
    if (want.contains("line")) EXPECT_THAT(got.error, HasSubstr(name + ":" + want["line"].dump() + ":"));
  }
  const Found plain = read(folder + "/plain.jsonl");
  for (const char* name : {"plain.jsonl.gz", "plain.jsonl.zst", "members.jsonl.gz", "frames.jsonl.zst", "crlf.jsonl",
                           "skippable.jsonl.zst", "stored.jsonl.gz", "header-fields.jsonl.gz"})
    EXPECT_EQ(read(folder + "/" + name).records, plain.records) << name;
  EXPECT_THAT(read(folder + "/line-of-64MB.jsonl.zst", 1 << 20).error, HasSubstr("too long"));
}

TEST(JsonLines, ResumesAtAnyLineOfPlainAndPackedFiles) {
  const test::TemporaryFolder folder;
  const std::string text = records(300);
  test::write_gzip(folder / "a.jsonl.gz", text);
  const std::string half = text.substr(0, 1000);
  for (const std::string& path : {folder.write("a.jsonl", text), folder / "a.jsonl.gz",
                                  folder.write("a.jsonl.zst", pack(half) + pack("") + pack(text.substr(1000)))}) {
    std::vector<std::string> lines;
    std::vector<LinePosition> starts;
    LineReader reader(path, 100);
    for (std::string line; starts.push_back(reader.position()), reader.next(line);) lines.push_back(line);
    ASSERT_EQ(lines.size(), 300u);
    for (const size_t from : {0u, 1u, 45u, 299u, 300u}) {
      LineReader later(path, 100, starts[from]);
      std::string line;
      EXPECT_EQ(later.next(line), from < 300) << path << from;
      if (from < 300) {
        EXPECT_EQ(line, lines[from]);
        EXPECT_EQ(later.position(), starts[from + 1]);
      }
    }
  }
}

TEST(JsonLines, ReportsDamageAfterTheRecordsBeforeIt) {
  const test::TemporaryFolder folder;
  const std::string text = records(3000);
  test::write_gzip(folder / "a.jsonl.gz", text);
  const std::string packed = test::read_all(folder / "a.jsonl.gz");
  const Found cut = read(folder.write("cut.jsonl.gz", packed.substr(0, packed.size() / 2)));
  EXPECT_GT(cut.records.size(), 100u);
  EXPECT_THAT(cut.error, testing::AllOf(HasSubstr("cut.jsonl.gz"), HasSubstr("cut short (unexpected end")));
  std::string wrong = packed;
  wrong[wrong.size() - 6] ^= 1;
  const Found crc = read(folder.write("crc.jsonl.gz", wrong));
  EXPECT_EQ(crc.records.size(), 3000u);
  EXPECT_THAT(crc.error, HasSubstr("crc.jsonl.gz is damaged"));
  std::string zst = pack(text);
  EXPECT_THAT(read(folder.write("cut.jsonl.zst", zst.substr(0, zst.size() - 5))).error, HasSubstr("end of frame"));
  zst.back() = static_cast<char>(zst.back() ^ 1);
  const Found sum = read(folder.write("sum.jsonl.zst", zst));
  EXPECT_EQ(sum.records.size(), 3000u);
  EXPECT_THAT(sum.error, HasSubstr("sum.jsonl.zst is damaged"));
  EXPECT_THAT(read(folder.write("no.jsonl.zst", "text of some length")).error, HasSubstr("is not a zstd file"));
  EXPECT_THAT(read(folder.write("b.jsonl.zst", pack(text) + "text behind it")).error, HasSubstr("trailing bytes"));
}

/// Returns all bytes that read() returns before the end or an error, with `count` bytes per call.
std::string unpacked_before_damage(const std::string& path, int64_t count) {
  std::string all, piece(count, '\0');
  try {
    const auto file = UnpackedFile::open(path);
    while (const int64_t got = file->read(piece.data(), count)) all.append(piece, 0, got);
    return all + " and its end";
  } catch (const Error&) {
    return all;
  }
}

TEST(JsonLines, FindsACutForAnySizeOfReads) {
  const test::TemporaryFolder folder;
  const std::string text = std::string(70'000, 'a') + records(40);  // more bytes than one read takes
  test::write_gzip(folder / "a.gz", text);
  const std::string gz = test::read_all(folder / "a.gz"), zst = pack(text);
  for (const auto& [name, bytes] : {std::pair{"c.gz", gz}, {"c.zst", zst}})
    for (size_t size = 1; size < bytes.size(); size += 1 + bytes.size() / 31) {
      const std::string path = folder.write(name, bytes.substr(0, size)), want = unpacked_before_damage(path, 1 << 20);
      EXPECT_FALSE(want.ends_with("end")) << name << " cut at " << size;
      for (const int64_t count : {1000, 4096, 65'537})
        EXPECT_EQ(unpacked_before_damage(path, count).size(), want.size())
            << name << " cut at " << size << ", " << count;
    }
}

// For any bytes, reading ends with records or an error. It does not crash, and its memory stays bounded.
TEST(JsonLines, ReadsOrRefusesMutatedFiles) {
  const test::TemporaryFolder folder;
  const std::string text = records(60);
  test::write_gzip(folder / "a.jsonl.gz", text);
  const std::string gz = test::read_all(folder / "a.jsonl.gz"), zst = pack(text, 0);
  std::mt19937 random(7);
  int64_t refused = 0;
  for (int i = 0; i < 300; ++i) {
    const bool is_gzip = i % 2 == 0;
    std::string bytes = is_gzip ? gz : zst;
    for (unsigned change = 0; change <= i % 4u; ++change)
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    if (i % 7 == 0) bytes.resize(random() % bytes.size());
    const Found found = read(folder.write(is_gzip ? "m.jsonl.gz" : "m.jsonl.zst", bytes), 1000);
    refused += found.error.empty() ? 0 : 1;
    EXPECT_LE(found.records.size(), 200u);
  }
  EXPECT_GT(refused, 150);
}

TEST(JsonLines, JoinsColumnsAndNamesMissingOnes) {
  const auto record = parse_json_line(R"({"title": "A", "text": "b", "n": 3})", "f", 4);
  EXPECT_EQ(text_of_columns(record, {"title", "text"}, "f", 4), "A\n\nb");
  const auto refusal = [&](const char* column) {
    return test::thrown_message([&] { text_of_columns(record, {column}, "f", 4); });
  };
  EXPECT_THAT(refusal("body"), HasSubstr("f:4: no column body"));
  EXPECT_THAT(refusal("n"), HasSubstr("f:4: column n must be text: got number"));
}

TEST(JsonLines, FindsFilesOfAFolderByTheirEndings) {
  const test::TemporaryFolder folder;
  for (const char* name : {"b.jsonl", "a/c.jsonl.zst", "a/d.json.gz", "README.md", ".hidden/e.jsonl", ".f.jsonl",
                           "run/metrics.jsonl", "run/config.toml"})
    folder.write(name, "");
  EXPECT_THAT(record_files(folder.path()),
              testing::ElementsAre(folder / "a/c.jsonl.zst", folder / "a/d.json.gz", folder / "b.jsonl"));
}

TEST(JsonLines, AcceptsEndingsInEitherCase) {
  const test::TemporaryFolder folder;
  const std::string text = records(3);
  test::write_gzip(folder / "a.JSONL.GZ", text);
  folder.write("b.Ndjson", text);
  folder.write("c.jsonl.ZST", pack(text));
  for (const char* other : {"d.json", "e.arrow", "f.ARROW", "g"}) folder.write(other, "x");
  EXPECT_TRUE(is_record_folder(folder.path()));
  EXPECT_TRUE(is_record_file("x.PARQUET"));
  LeftOut left_out;
  const std::vector<std::string> files = record_files(folder.path(), &left_out);
  EXPECT_THAT(files, testing::ElementsAre(folder / "a.JSONL.GZ", folder / "b.Ndjson", folder / "c.jsonl.ZST"));
  for (const std::string& file : files) EXPECT_EQ(read(file).records.size(), 3u) << file << read(file).error;
  const std::string notice = "in " + folder.path() + " 4 files are not read: 2 .arrow, 1 .json, 1 without an ending";
  EXPECT_EQ(left_out.notice(folder.path()), notice);
  EXPECT_EQ(StreamSource::open("s", folder.path(), 1).left_out, notice);
}

TEST(JsonLines, CountsTheMostFrequentOtherEndings) {
  LeftOut left_out;
  EXPECT_EQ(left_out.notice("d"), std::nullopt);
  for (int i = 0; i < 12; ++i)
    for (int files = 0; files <= i; ++files) left_out.add(concat("x.", static_cast<char>('a' + i)));
  EXPECT_EQ(left_out.notice("d"),
            "in d 78 files are not read: 12 .l, 11 .k, 10 .j, 9 .i, 8 .h, 7 .g, 6 .f, 5 .e, 4 .d, 3 .c, 3 others");
}

TEST(JsonLines, RecognizesAFolderWithoutTextsAmongThem) {
  const test::TemporaryFolder folder;
  folder.write("set/README.md", "");
  EXPECT_FALSE(is_record_folder(folder / "set"));
  EXPECT_FALSE(is_record_folder(folder / "none"));
  folder.write("set/data/en/a.jsonl.gz", "");
  EXPECT_TRUE(is_record_folder(folder / "set")) << "a README stands beside the data";
  folder.write("set/data/notes.txt", "");
  EXPECT_FALSE(is_record_folder(folder / "set"));
  folder.write("set/b.jsonl", "");
  EXPECT_TRUE(is_record_folder(folder / "set"));
}

TEST(JsonLines, RefusesNamesThatNoCheckpointCanStore) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("caf\xe9.jsonl", "{}\n");
  const auto refusal = [](const std::string& path) { return test::thrown_message([&] { record_files(path); }); };
  EXPECT_THAT(refusal(file), HasSubstr("file names must be UTF-8"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("file names must be UTF-8"));
}

}  // namespace
}  // namespace colossal::data::json_lines_test
