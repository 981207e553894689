// Streams of text from files. The order is the same for any ranks, threads and batch sizes, and a stream resumes at any
// position.
#include "colossal/data/streams/document_stream.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "support/cifar_folder.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::document_stream_test {
namespace {

using testing::HasSubstr;
using Rows = std::vector<std::vector<int64_t>>;

std::vector<int64_t> numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

/// Returns JSON lines of documents `<letter><number>`, followed by 0 to 4 dots.
std::string lines(char letter, int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i)
    text += "{\"text\": \"" + std::string(1, letter) + std::to_string(i) + std::string(i % 5, '.') + "\"}\n";
  return text;
}

class DocumentStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    folder.write("web/a.jsonl", lines('a', 0, 40));
    test::write_gzip(folder / "web/b.jsonl.gz", lines('b', 0, 30));
    folder.write("books.jsonl", lines('k', 0, 25));
    options.batch_size = 4;
    options.sequence = 16;
    options.records.seed = 11;
    options.records.shuffle_bytes = 500;
  }
  std::vector<StreamSource> sources() const {
    return {StreamSource::open("web", folder / "web", 3), StreamSource::open("books", folder / "books.jsonl", 1)};
  }
  std::unique_ptr<DocumentStream> stream() const { return stream(options); }
  std::unique_ptr<DocumentStream> stream(const DocumentStreamOptions& o) const {
    return std::make_unique<DocumentStream>(sources(), tokenizer, o);
  }
  Rows rows(BatchReader& reader, int batches) const {
    Rows all;
    for (int i = 0; i < batches; ++i) {
      const tensor::Batch batch = reader.next({});
      for (int64_t row = 0; row < batch.at("ids").size(0); ++row) {
        all.push_back(numbers(batch.at("ids")[row]));
        for (const auto& [name, field] : batch.fields()) {
          if (name == "ids") continue;
          const auto more = numbers(field.tensor[row]);
          all.back().insert(all.back().end(), more.begin(), more.end());
        }
      }
    }
    return all;
  }
  /// Returns the complete documents of the next `batches` batches.
  std::vector<std::string> documents(BatchReader& reader, int batches) const {
    std::vector<std::string> found(1);
    for (int i = 0; i < batches; ++i)
      for (const int64_t token : numbers(reader.next({}).at("ids"))) {
        if (token == tokenizer->end_id())
          found.emplace_back();
        else
          found.back() += static_cast<char>(token);
      }
    found.pop_back();
    return found;
  }
  std::string refusal(BatchReader& reader, int batches = 1000) const {
    return test::thrown_message([&] {
      for (int i = 0; i < batches; ++i) reader.next({});
    });
  }

  test::TemporaryFolder folder;
  std::shared_ptr<const text::Tokenizer> tokenizer = text::make_tokenizer("bytes");
  DocumentStreamOptions options;
};

TEST_F(DocumentStreamTest, YieldsEqualBatchesForAnyRanksThreadsAndBatchSizes) {
  options.masking = Masking{.share = 0.3, .mask_id = 257, .vocabulary = 257};
  const Rows want = rows(*stream(), 30);
  for (const int ranks : {2, 4}) {
    Rows got(want.size());
    for (int rank = 0; rank < ranks; ++rank) {
      DocumentStreamOptions o = options;
      o.rank = rank, o.ranks = ranks, o.threads = 1 + ranks;
      const Rows mine = rows(*stream(o), 30);
      const size_t of_batch = 4 / ranks;
      for (size_t i = 0; i < mine.size(); ++i) got[i / of_batch * 4 + rank * of_batch + i % of_batch] = mine[i];
    }
    EXPECT_EQ(got, want) << ranks;
  }
  options.batch_size = 6;
  EXPECT_EQ(rows(*stream(), 20), want);
  options.records.seed = 12;
  EXPECT_NE(rows(*stream(), 20), want);
}

TEST_F(DocumentStreamTest, TakesAPartOfEachMicroBatchAlsoAfterAResume) {
  options.batch_size = 8;
  options.masking = Masking{.share = 0.3, .mask_id = 257, .vocabulary = 257};
  const Rows want = rows(*stream(), 12);
  options.micro_batches = 2, options.ranks = 2;
  for (options.rank = 0; options.rank < 2; ++options.rank) {
    const auto own = stream();
    for (int64_t step = 0; step < 12; ++step) {
      const auto resumed = stream();
      resumed->seek(nlohmann::json::parse(own->position().dump()));
      const Rows got = rows(*own, 1);
      const int64_t first = 8 * step + 2 * options.rank;
      EXPECT_EQ(got, (Rows{want[first], want[first + 1], want[first + 4], want[first + 5]})) << step;
      EXPECT_EQ(rows(*resumed, 1), got) << step;
    }
  }
}

TEST_F(DocumentStreamTest, ResumesAtAnyPosition) {
  for (const int64_t buffer : {0, 100, 100'000}) {
    options.records.shuffle = buffer > 0;
    options.records.shuffle_bytes = buffer;
    const Rows want = rows(*stream(), 40);
    const auto first = stream();
    for (int stop = 0; stop < 40; ++stop) {
      const auto second = stream();
      second->seek(nlohmann::json::parse(first->position().dump()));
      const Rows got = rows(*second, std::min(3, 40 - stop));
      EXPECT_EQ(got, Rows(want.begin() + stop * 4, want.begin() + stop * 4 + static_cast<int64_t>(got.size())))
          << stop << ", buffer " << buffer;
      first->next({});
    }
  }
}

TEST_F(DocumentStreamTest, VisitsEachDocumentOncePerEpochInAnotherOrder) {
  const std::vector<StreamSource> web = {StreamSource::open("web", folder / "web", 1)};
  DocumentStream reader(web, tokenizer, options);
  const auto found = documents(reader, 16);
  ASSERT_GE(found.size(), 140u);
  const std::vector<std::string> first(found.begin(), found.begin() + 70),
      second(found.begin() + 70, found.begin() + 140);
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), 70u);
  EXPECT_THAT(second, testing::UnorderedElementsAreArray(first));
  EXPECT_NE(second, first);
  options.records.shuffle = false;
  DocumentStream ordered(web, tokenizer, options);
  const auto as_they_stand = documents(ordered, 1);
  EXPECT_THAT(std::vector<std::string>(as_they_stand.begin(), as_they_stand.begin() + 4),
              testing::ElementsAre("a0", "a1.", "a2..", "a3..."));
}

TEST_F(DocumentStreamTest, DrawsSourcesByTheirWeights) {
  const auto found = documents(*stream(), 200);
  const auto books = std::count_if(found.begin(), found.end(), [](const std::string& d) { return d[0] == 'k'; });
  const double share = static_cast<double>(books) / static_cast<double>(found.size());
  const double deviation = std::sqrt(0.25 * 0.75 / static_cast<double>(found.size()));
  EXPECT_NEAR(share, 0.25, 4 * deviation);
}

TEST_F(DocumentStreamTest, HoldsOutRecordsThatTrainingNeverSees) {
  options.records.held_out = 0.2;
  std::vector<std::string> notices;
  const Corpus corpus = read_held_out(sources(), *tokenizer, options, 1 << 20, notices);
  EXPECT_THAT(notices, testing::IsEmpty());
  std::vector<int64_t> tokens(corpus.size());
  corpus.read(0, corpus.size(), tokens.data());
  std::set<std::string> held_out;
  std::string document;
  for (const int64_t token : tokens) {
    if (token == corpus.end_id())
      held_out.insert(std::exchange(document, {}));
    else
      document += static_cast<char>(token);
  }
  EXPECT_GT(held_out.size(), 8u);
  EXPECT_LT(held_out.size(), 32u);
  options.records.part = Part::Training;
  std::set<std::string> seen;
  for (const std::string& each : documents(*stream(), 200)) seen.insert(each);
  EXPECT_EQ(seen.size() + held_out.size(), 95u);
  for (const std::string& each : held_out) EXPECT_FALSE(seen.contains(each)) << each;
}

TEST_F(DocumentStreamTest, NamesFileAndLineOfFaults) {
  folder.write("web/a.jsonl", lines('a', 0, 5) + "{\"text\": 5}\n" + lines('a', 5, 9));
  EXPECT_THAT(refusal(*stream()), testing::AllOf(HasSubstr("web/a.jsonl:6: column text must be text"),
                                                 HasSubstr("data.on_error = \"skip\"")));
  folder.write("web/a.jsonl", lines('a', 0, 5) + "{\"text\"\n" + lines('a', 5, 9));
  EXPECT_THAT(refusal(*stream()), HasSubstr("web/a.jsonl:6: not valid JSON"));
  folder.write("web/a.jsonl", "{\"text\": \"" + std::string(5000, 'x') + "\"}\n");
  options.records.max_line_bytes = 4000;
  EXPECT_THAT(refusal(*stream()), HasSubstr("web/a.jsonl:1: a line must have at most 4000 bytes"));
  folder.write("web/a.jsonl", "\n");
  const std::string packed = test::read_all(folder / "web/b.jsonl.gz");
  folder.write("web/b.jsonl.gz", packed.substr(0, packed.size() - 9));
  EXPECT_THAT(refusal(*stream()),
              testing::ContainsRegex("web/b.jsonl.gz:[0-9]+: .*b.jsonl.gz is damaged or cut short"));
  folder.write("web/b.jsonl.gz", packed);
  options.columns = {"body"};
  EXPECT_THAT(refusal(*stream()), HasSubstr("no column body"));
}

TEST_F(DocumentStreamTest, SkipsFaultsAndReportsThem) {
  options.records.on_error = OnError::Skip;
  options.records.shuffle = false;
  folder.write("web/a.jsonl", lines('a', 0, 2) + "{\"text\": 5}\n" + lines('a', 2, 4) + "nonsense\n");
  const std::string packed = test::read_all(folder / "web/b.jsonl.gz");
  folder.write("web/b.jsonl.gz", packed.substr(0, packed.size() - 3));
  const std::vector<StreamSource> web = {StreamSource::open("web", folder / "web", 1)};
  options.batch_size = 1;
  options.sequence = 150;
  DocumentStream reader(web, tokenizer, options);
  const auto found = documents(reader, 1);
  EXPECT_THAT(std::vector<std::string>(found.begin(), found.begin() + 5),
              testing::ElementsAre("a0", "a1.", "a2..", "a3...", "b0"));
  documents(reader, 1);
  EXPECT_THAT(reader.take_notices(), testing::IsSupersetOf({HasSubstr("web/a.jsonl:3: column text"),
                                                            HasSubstr("web/a.jsonl:6: not valid JSON"),
                                                            HasSubstr("the rest of the file cannot be read")}));
  folder.write("web/a.jsonl", "nonsense\n");
  folder.write("web/b.jsonl.gz", "nonsense\n");
  DocumentStream none({StreamSource::open("web", folder / "web", 1)}, tokenizer, options);
  EXPECT_THAT(refusal(none), HasSubstr("whole epochs of the data held no text"));
  folder.write("web/a.jsonl", "\n");
  DocumentStream empty({StreamSource::open("web", folder / "web", 1)}, tokenizer, options);
  EXPECT_THAT(refusal(empty), HasSubstr("no records in"));
}

TEST_F(DocumentStreamTest, RefusesPositionsOfOtherDataAndDamagedOnes) {
  Batches batches(stream(), false);
  batches.next();
  nlohmann::json state = batches.state();
  Batches again(stream(), false);
  again.restore(state);
  EXPECT_EQ(numbers(again.next().at("ids")), numbers(batches.next().at("ids")));
  EXPECT_EQ(again.state(), batches.state());
  nlohmann::json damaged = state;
  damaged["at"]["sources"]["web"]["taken"] = -1;
  EXPECT_THAT(test::thrown_message([&] { again.restore(damaged); }), HasSubstr("damaged"));
  EXPECT_EQ(numbers(again.next().at("ids")), numbers(batches.next().at("ids"))) << "goes on from where it was";
  for (const nlohmann::json& wrong :
       {nlohmann::json("1"), nlohmann::json(0.5), nlohmann::json(1e300), nlohmann::json(true), nlohmann::json(-1),
        nlohmann::json(~0ull), nlohmann::json(), nlohmann::json({1}), nlohmann::json(1ll << 62)})
    for (const char* place : {"/row", "/tokens_before", "/passed_over", "/at", "/at/records", "/at/sources",
                              "/at/sources/web", "/at/sources/web/epoch", "/at/sources/web/block",
                              "/at/sources/web/file", "/at/sources/web/offset", "/at/sources/web/line"}) {
      damaged = state;
      damaged[nlohmann::json::json_pointer(place)] = wrong;
      EXPECT_THAT(test::thrown_message([&] { again.restore(damaged); }),
                  HasSubstr("the checkpoint's data position is damaged"))
          << place << " " << wrong;
    }
  EXPECT_EQ(numbers(again.next().at("ids")), numbers(batches.next().at("ids"))) << "goes on from where it was";
  // These errors are found only when the stream reads.
  for (const auto& [place, wrong] : {std::pair{"/tokens_before", 1ll << 40},
                                     {"/at/sources/web/offset", 1ll << 40},
                                     {"/at/sources/web/taken", 1ll << 40}}) {
    damaged = state;
    damaged[nlohmann::json::json_pointer(place)] = wrong;
    Batches lost(stream(), false);
    EXPECT_THAT(test::thrown_message([&] {
                  lost.restore(damaged);
                  for (int i = 0; i < 20; ++i) lost.next();
                }),
                HasSubstr("damaged"))
        << place;
  }
  folder.write("books.jsonl", lines('k', 0, 26));
  Batches edited(stream(), false);
  EXPECT_THAT(test::thrown_message([&] { edited.restore(state); }),
              testing::AllOf(HasSubstr("the data or its keys changed"), HasSubstr("books.jsonl")));
}

TEST_F(DocumentStreamTest, IdentifiesSourcesByTheirNames) {
  const auto reversed = [&] {
    auto given = sources();
    std::reverse(given.begin(), given.end());
    return std::make_unique<DocumentStream>(given, tokenizer, options);
  };
  const Rows want = rows(*stream(), 20);
  EXPECT_EQ(rows(*reversed(), 20), want);
  Batches batches(stream(), false);
  for (int i = 0; i < 7; ++i) batches.next();
  const nlohmann::json state = nlohmann::json::parse(batches.state().dump());
  Batches again(reversed(), false);
  again.restore(state);
  EXPECT_EQ(numbers(again.next().at("ids")), numbers(batches.next().at("ids")));
  Batches renamed(std::make_unique<DocumentStream>(std::vector{StreamSource::open("web", folder / "web", 3),
                                                               StreamSource::open("b", folder / "books.jsonl", 1)},
                                                   tokenizer, options),
                  false);
  EXPECT_THAT(
      test::thrown_message([&] { renamed.restore(state); }),
      testing::AllOf(HasSubstr("the data or its keys changed"), HasSubstr("books is gone"), HasSubstr("b is new")));
  EXPECT_THAT(test::thrown_message([&] { DocumentStream twice({sources()[0], sources()[0]}, tokenizer, options); }),
              HasSubstr("two sources are named web"));
}

/// A byte tokenizer in which two tokens are swapped.
class SwappedBytes final : public text::Tokenizer {
 public:
  std::vector<int64_t> encode(std::string_view text) const override { return bytes_->encode(text); }
  std::string piece(int64_t id) const override { return bytes_->piece(id == 'a' ? 'b' : id == 'b' ? 'a' : id); }
  int64_t vocabulary_size() const override { return bytes_->vocabulary_size(); }
  int64_t end_id() const override { return bytes_->end_id(); }

 private:
  std::unique_ptr<text::Tokenizer> bytes_ = text::make_tokenizer("bytes");
};

TEST_F(DocumentStreamTest, RefusesAPositionInOtherTokens) {
  Batches batches(stream(), false);
  tokenizer = std::make_shared<SwappedBytes>();
  Batches other(stream(), false);
  EXPECT_THAT(test::thrown_message([&] { other.restore(batches.state()); }), HasSubstr("tokenizer was checksum"));
}

// A line of one byte takes about a hundred bytes in memory.
TEST_F(DocumentStreamTest, HoldsNoMoreThanItsBufferOfTinyLines) {
  std::string tiny;
  for (int i = 0; i < 50'000; ++i) tiny += "1\n";
  RecordSource source({folder.write("tiny.jsonl", tiny)}, {"tiny.jsonl"}, {.shuffle_bytes = 1 << 18});
  for (int i = 0; i < 50'000; ++i) source.next();
  EXPECT_GE(source.position().block, 50'000 * static_cast<int64_t>(sizeof(Record)) / (1 << 18) - 1);
  EXPECT_EQ(source.position().epoch, 0);
}

TEST_F(DocumentStreamTest, ReportsFaultsOnceAndKeepsTheCountOnResume) {
  options.records.on_error = OnError::Skip;
  options.records.max_line_bytes = 100;
  options.records.shuffle_bytes = 1500;
  std::string text;
  for (int i = 0; i < 30; ++i)
    text += lines('a', i, i + 1) + (i % 3 == 0 ? "nonsense\n" : i % 3 == 1 ? std::string(200, 'x') + "\n" : "");
  folder.write("web/a.jsonl", text);
  const std::vector<StreamSource> web = {StreamSource::open("web", folder / "web", 1)};
  const auto count = [&](int stop) {
    DocumentStream first(web, tokenizer, options);
    rows(first, stop);
    DocumentStream second(web, tokenizer, options);
    second.seek(first.position());
    rows(second, 12 - stop);
    return second.position()["passed_over"].get<int64_t>();
  };
  const int64_t whole = count(0);
  EXPECT_GT(whole, 25);
  for (int stop = 1; stop < 12; ++stop) EXPECT_EQ(count(stop), whole) << stop;
}

TEST_F(DocumentStreamTest, ReportsFaultsOfHeldOutRecords) {
  options.records.on_error = OnError::Skip;
  options.records.held_out = 0.5;
  folder.write("web/a.jsonl", lines('a', 0, 10) + "nonsense\nnonsense\nnonsense\nnonsense\nnonsense\n");
  std::vector<std::string> notices;
  read_held_out(sources(), *tokenizer, options, 1 << 20, notices);
  EXPECT_THAT(notices, testing::Contains(HasSubstr("held out: skipped: " + folder.path() + "/web/a.jsonl:1")));
}

}  // namespace
}  // namespace colossal::data::document_stream_test
