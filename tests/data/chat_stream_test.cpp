// Streams of chats: rows, packing, order, resuming, and what is lost.
#include "colossal/data/chats/chat_stream.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "data/chat_tokens.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::chat_stream_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Numbers = std::vector<int64_t>;

Numbers numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous().view({-1});
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

/// The fields of a row.
using Row = std::map<std::string, Numbers>;

std::vector<Row> rows_of(const tensor::Batch& batch) {
  std::vector<Row> rows;
  for (int64_t row = 0; row < batch.rows(); ++row) {
    Row& fields = rows.emplace_back();
    for (const auto& [name, field] : batch.fields()) fields[name] = numbers(field.tensor[row]);
  }
  return rows;
}

/// Returns the documents of a row as their ids followed by their labels, after a check of positions and padding.
std::vector<Numbers> documents_of(const Row& row) {
  std::vector<Numbers> documents;
  const Numbers &ids = row.at("ids"), &labels = row.at("labels"), &positions = row.at("positions");
  const int64_t length = row.at("lengths")[0];
  Numbers own;
  for (int64_t i = 0; i < static_cast<int64_t>(ids.size()); ++i) {
    const bool begins = i == 0 || row.at("documents")[i] != row.at("documents")[i - 1];
    EXPECT_EQ(positions[i], begins ? 0 : positions[i - 1] + 1) << i;
    if (i >= length) {
      EXPECT_EQ(labels[i], kIgnored);
      EXPECT_EQ(ids[i], made::kDocumentEnd);
      EXPECT_TRUE(i > length || begins) << "padding is a document of its own";
      continue;
    }
    if (begins) documents.emplace_back(), own.clear();
    documents.back().insert(documents.back().begin() + static_cast<std::ptrdiff_t>(own.size()), ids[i]);
    own.push_back(ids[i]);
    documents.back().push_back(labels[i]);
    const bool ends = i + 1 == length || row.at("documents")[i + 1] != row.at("documents")[i];
    EXPECT_TRUE(ends ? labels[i] == kIgnored : labels[i] == kIgnored || labels[i] == ids[i + 1]) << i;
  }
  return documents;
}

std::string chat(const std::string& question, const std::string& answer) {
  return nlohmann::json{
             {"messages", {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}}}}
             .dump() +
         "\n";
}

class ChatStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string lines;
    for (int i = 0; i < 40; ++i) lines += chat("q" + std::to_string(i), std::string(1 + i % 9, 'a'));
    folder.write("chats.jsonl", lines);
    lines.clear();
    for (int i = 0; i < 25; ++i)
      lines +=
          "{\"prompt\": \"p" + std::to_string(i) + "\", \"completion\": \"" + std::string(1 + i % 5, 'c') + "\"}\n";
    folder.write("sums.jsonl", lines);
    options.batch_size = 4;
    options.rules.sequence = 96;
    options.records.seed = 11;
    options.records.shuffle_bytes = 3000;
  }
  std::vector<StreamSource> one() const { return {StreamSource::open("chats", folder / "chats.jsonl", 1)}; }
  std::vector<StreamSource> both() const { return {one()[0], StreamSource::open("sums", folder / "sums.jsonl", 2)}; }
  static std::shared_ptr<const ChatEncoder> encoder(Answers answers = Answers::All) {
    return std::make_shared<ChatEncoder>(made::chat_tokenizer(), text::ChatTemplate(made::kChatMl),
                                         ChatEncoderOptions{.answers = answers, .end_ids = {made::kTurnEnd}});
  }
  static std::unique_ptr<ChatStream> stream(const std::vector<StreamSource>& sources, const ChatStreamOptions& o) {
    return std::make_unique<ChatStream>(sources, encoder(), o);
  }
  static std::vector<Row> rows(BatchReader& reader, int batches) {
    std::vector<Row> all;
    for (int i = 0; i < batches; ++i)
      for (Row& row : rows_of(reader.next({}))) all.push_back(std::move(row));
    return all;
  }
  /// Returns the documents of the rows of the next batches.
  static std::vector<Numbers> documents(BatchReader& reader, int batches) {
    std::vector<Numbers> all;
    for (const Row& row : rows(reader, batches))
      for (Numbers& document : documents_of(row)) all.push_back(std::move(document));
    return all;
  }
  std::string refusal(const std::string& lines, const ChatStreamOptions& o) const {
    const StreamSource source = StreamSource::open("bad", folder.write("bad.jsonl", lines), 1);
    return test::thrown_message([&] {
      const auto reader = stream({source}, o);
      for (int i = 0; i < 50; ++i) reader->next({});
    });
  }

  test::TemporaryFolder folder;
  ChatStreamOptions options;
};

TEST_F(ChatStreamTest, GivesEqualRowsForAnyRanksThreadsAndMicroBatches) {
  for (const bool packing : {true, false}) {
    options.packing = packing;
    options.batch_size = 8;
    options.ranks = 1, options.micro_batches = 1, options.rank = 0, options.threads = 1;
    const std::vector<Row> want = rows(*stream(both(), options), 12);
    for (const auto& [ranks, micro_batches] : {std::pair{2, 1}, {4, 2}, {2, 4}, {8, 1}}) {
      options.ranks = ranks, options.micro_batches = micro_batches, options.threads = 3;
      std::vector<Row> got(want.size());
      for (options.rank = 0; options.rank < ranks; ++options.rank) {
        const std::vector<Row> own = rows(*stream(both(), options), 12);
        const tensor::ReplicaRows split{8, micro_batches, options.rank, ranks};
        const int64_t count = split.count();
        for (int64_t i = 0; i < static_cast<int64_t>(own.size()); ++i)
          got[i / count * 8 + split.global(i % count)] = own[i];
      }
      EXPECT_EQ(got, want) << ranks << " ranks, " << micro_batches << " micro-batches, packing " << packing;
    }
  }
}

TEST_F(ChatStreamTest, PacksTheSameTokensThatRowsOfOneSampleHave) {
  options.packing = false;
  std::vector<Numbers> single = documents(*stream(one(), options), 10);  // an epoch of 40 samples
  options.packing = true;
  const auto packed = stream(one(), options);
  std::vector<Numbers> together;
  int64_t filled = 0, rows_read = 0;
  while (together.size() < single.size()) {
    for (const Row& row : rows(*packed, 1)) {
      for (Numbers& document : documents_of(row)) together.push_back(std::move(document));
      filled += row.at("lengths")[0];
      ++rows_read;
      EXPECT_EQ(row.at("ids").size(), 96u);
    }
  }
  together.resize(single.size());
  EXPECT_LT(rows_read, 25);
  EXPECT_GT(filled * 10, rows_read * 96 * 6);
  // The last rows may be of the next epoch, whose windows have other samples.
  std::set<Numbers> all(single.begin(), single.end());
  EXPECT_EQ(all.size(), 40u);
  for (const Numbers& document : together) EXPECT_TRUE(all.contains(document));
}

TEST_F(ChatStreamTest, PacksEveryRecordOfAnEpochOnce) {
  options.batch_size = 1;
  for (const bool shuffle : {true, false}) {
    options.records.shuffle = shuffle;
    const auto reader = stream(one(), options);
    std::vector<Numbers> epochs[2];
    for (auto& epoch : epochs)
      while (epoch.size() < 40) {
        const std::vector<Numbers> more = documents(*reader, 1);
        epoch.insert(epoch.end(), more.begin(), more.end());
      }
    EXPECT_EQ(epochs[0].size(), 40u);  // a window ends with its epoch, so no row has records of two epochs
    EXPECT_EQ(std::set<Numbers>(epochs[0].begin(), epochs[0].end()).size(), 40u);
    EXPECT_THAT(epochs[1], testing::UnorderedElementsAreArray(epochs[0]));
    EXPECT_EQ(epochs[1] == epochs[0], !shuffle);
  }
}

TEST_F(ChatStreamTest, ResumesAtAnyBatch) {
  for (const bool packing : {true, false})
    for (const int64_t bytes : {0, 1500})
      for (const auto& sources : {one(), both()}) {
        options.packing = packing;
        options.records.shuffle = bytes > 0;
        options.records.shuffle_bytes = bytes;
        const std::vector<Row> want = rows(*stream(sources, options), 14);
        const auto first = stream(sources, options);
        for (int stop = 0; stop < 12; ++stop) {
          const auto second = stream(sources, options);
          second->seek(nlohmann::json::parse(first->position().dump()));
          EXPECT_EQ(second->position(), first->position());
          EXPECT_EQ(rows(*second, 2), std::vector<Row>(want.begin() + stop * 4, want.begin() + stop * 4 + 8))
              << stop << ", packing " << packing << ", " << bytes << " bytes";
          first->next({});
        }
      }
}

TEST_F(ChatStreamTest, EndsRowsAtTheLongestOfTheGlobalBatch) {
  options.packing = false;
  options.records.shuffle = false;
  options.batch_size = 2;
  const auto width = [&](int64_t multiple, int64_t sequence, int rank, int ranks) {
    ChatStreamOptions o = options;
    o.row_multiple = multiple, o.rules.sequence = sequence, o.rank = rank, o.ranks = ranks;
    return stream(one(), o)->next({}).at("ids").size(1);
  };
  const int64_t longest = (1 + 5 + 2 + 2) + (1 + 10 + 2 + 2);  // "q1" and "aa", each with a mark, a role and an end
  EXPECT_EQ(width(1, 96, 0, 1), longest);
  EXPECT_EQ(width(1, 96, 0, 2), longest);  // also on the rank that has the shorter row
  EXPECT_EQ(width(16, 96, 1, 2), 32);
  EXPECT_EQ(width(64, 40, 0, 1), 40);
}

TEST_F(ChatStreamTest, CutsDropsOrRefusesWhatIsTooLong) {
  options.packing = false;
  options.batch_size = 1;
  options.records.shuffle = false;
  const std::string text =
      chat("a", "b") + chat("a", std::string(50, 'l')) + chat(std::string(60, 'q'), "lost") + chat("c", "d");
  const StreamSource source = StreamSource::open("long", folder.write("long.jsonl", text), 1);
  options.rules.sequence = 40;
  const auto cut = stream({source}, options);
  const std::vector<Row> rows_cut = rows(*cut, 4);
  EXPECT_EQ(rows_cut[1].at("lengths")[0], 40);
  EXPECT_EQ(rows_cut[3], rows_cut[0]);  // of the next epoch; the third record has no answer left
  std::vector<std::string> notices = cut->take_notices();
  EXPECT_THAT(notices, Contains(AllOf(HasSubstr("cut: " + folder.path() + "/long.jsonl:2 has "),
                                      HasSubstr("data.sequence = 40"))));
  EXPECT_THAT(notices, Contains(AllOf(HasSubstr("dropped: " + folder.path() + "/long.jsonl:3"),
                                      HasSubstr("no token that is trained"))));
  EXPECT_EQ(cut->position()["cut"], 1);
  EXPECT_EQ(cut->position()["unlabelled"], 1);
  options.rules.too_long = TooLong::Drop;
  const auto drop = stream({source}, options);
  const std::vector<Row> kept = rows(*drop, 3);
  EXPECT_EQ(kept[0], kept[2]);
  EXPECT_EQ(drop->position()["dropped"], 2);
  EXPECT_THAT(drop->take_notices(), Contains(HasSubstr("dropped: " + folder.path() + "/long.jsonl:2 has ")));
  options.rules.too_long = TooLong::Refuse;
  EXPECT_THAT(
      refusal(text, options),
      AllOf(HasSubstr("bad.jsonl:2: a text must have at most data.sequence = 40 tokens"), HasSubstr("data.too_long")));
}

TEST_F(ChatStreamTest, NamesFileAndLineOfFaultsOrSkipsThem) {
  options.records.shuffle = false;
  const std::string bad = chat("a", "b") + "{\"messages\": [\n" +
                          R"([{"role": "bot", )"
                          R"("content": "x"}])" +
                          "\n" + chat("c", "d") + R"({"chosen": "a", "rejected": "b"})" + "\n";
  EXPECT_THAT(refusal(bad, options), AllOf(HasSubstr("bad.jsonl:2"), HasSubstr("data.on_error = \"skip\"")));
  EXPECT_THAT(refusal(R"([{"role": "bot", "content": "x"}])", options), HasSubstr("bad.jsonl:1: message 1: roles are"));
  EXPECT_THAT(refusal(R"({"chosen": "a", )"
                      R"("rejected": "b"})",
                      options),
              HasSubstr("bad.jsonl:1: this method reads chats"));
  options.records.on_error = OnError::Skip;
  options.packing = false;
  options.batch_size = 2;
  const auto skipping = stream({StreamSource::open("bad", folder.write("bad.jsonl", bad), 1)}, options);
  rows(*skipping, 1);
  EXPECT_EQ(skipping->position()["passed_over"], 2);
  rows(*skipping, 1);
  EXPECT_EQ(skipping->position()["passed_over"], 5);
  EXPECT_THAT(skipping->take_notices(),
              Contains(AllOf(HasSubstr("skipped: "), HasSubstr("bad.jsonl:3: message 1: roles"))));
  EXPECT_THAT(refusal("nonsense\n", options), HasSubstr("whole epochs of the data held no sample"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "content": "x", "weight": 0}])", options),
              HasSubstr("whole epochs of the data held no sample"));
}

TEST_F(ChatStreamTest, StaysWhereItIsAfterAFault) {
  options.records.shuffle = false;
  options.records.shuffle_bytes = 300;
  options.batch_size = 2;
  for (const bool packing : {true, false}) {
    options.packing = packing;
    std::string lines;
    for (int i = 0; i < 7; ++i) lines += chat("q" + std::to_string(i), std::string(40, 'a'));
    const auto reader =
        stream({StreamSource::open("bad", folder.write("bad.jsonl", lines + "nonsense\n"), 1)}, options);
    for (int i = 0; i < 3; ++i) reader->next({});
    const nlohmann::json before = reader->position();
    for (int i = 0; i < 2; ++i) EXPECT_THAT(test::thrown_message([&] { reader->next({}); }), HasSubstr("bad.jsonl:8"));
    EXPECT_EQ(reader->position(), before);
  }
}

TEST_F(ChatStreamTest, PutsBothTextsOfAPairIntoARow) {
  const std::string text = R"({"prompt": "2+3=", "chosen": "5", "rejected": "six", "margin": 0.5})"
                           "\n"
                           R"({"prompt": "1+1=", "chosen": "2", "rejected": "3"})"
                           "\n";
  const std::vector<StreamSource> pairs = {StreamSource::open("pairs", folder.write("pairs.jsonl", text), 1)};
  options.rules.samples = ChatSamples::Pairs;
  options.rules.sequence = 8;
  options.batch_size = 2;
  options.records.shuffle = false;
  const tensor::Batch batch = stream(pairs, options)->next({});
  EXPECT_EQ(batch.at("ids").size(1), 6 + 8);
  EXPECT_EQ(batch.at("margins")[0].item<float>(), 0.5f);
  EXPECT_EQ(batch.at("margins")[1].item<float>(), 0.0f);
  const std::vector<Row> rows = rows_of(batch);
  EXPECT_EQ(rows[0].at("documents"), (Numbers{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(documents_of(rows[1]).size(), 2u);
  const auto label = [](char c) { return static_cast<int64_t>(c); };
  EXPECT_EQ(rows[1].at("labels"),
            (Numbers{-100, -100, -100, label('2'), 256, -100, -100, -100, -100, label('3'), 256, -100, -100, -100}));
  EXPECT_EQ(rows[0].at("answer_lengths"), (Numbers{2, 4}));
  EXPECT_EQ(rows[1].at("answer_lengths"), (Numbers{2, 2}));
  EXPECT_EQ(batch.at("mean_answer_length")[0].item<double>(), 2);
  options.row_multiple = 32;  // positions of padding stay below half a row
  const std::vector<Row> padded = rows_of(stream(pairs, options)->next({}));
  EXPECT_EQ(padded[1].at("positions"), (Numbers{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3}));
  options.rules.sequence = 16;
  const Row longer = rows_of(stream(pairs, options)->next({}))[1];
  EXPECT_EQ(longer.at("positions").size(), 32u);
  EXPECT_EQ(longer.at("positions")[27], 15);
  EXPECT_EQ(longer.at("positions")[28], 0);
  options.row_multiple = 1;
  options.rules.sequence = 4;
  EXPECT_THAT(refusal(text, options),
              AllOf(HasSubstr("bad.jsonl:1: no token of the answer is trained"), HasSubstr("raise data.sequence")));
}

TEST_F(ChatStreamTest, PutsAllAnswersOfARankingIntoARow) {
  const std::string text = R"({"prompt": "1+1=", "answers": ["2", "two", "3"]})"
                           "\n"
                           R"({"prompt": "2+3=", "chosen": "5", "rejected": "6", "margin": 0.5})"
                           "\n";
  const std::vector<StreamSource> ranked = {StreamSource::open("ranked", folder.write("ranked.jsonl", text), 1)};
  options.rules.samples = ChatSamples::Ranked;
  options.rules.sequence = 8;
  options.rules.answers = 3;
  options.batch_size = 2;
  options.row_multiple = 32;  // more than three texts of 8 tokens
  options.records.shuffle = false;
  const tensor::Batch batch = stream(ranked, options)->next({});
  EXPECT_EQ(batch.at("ids").size(1), 24);
  const std::vector<Row> rows = rows_of(batch);
  EXPECT_EQ(rows[0].at("documents"), (Numbers{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3}));
  EXPECT_EQ(rows[0].at("answer_lengths"), (Numbers{2, 4, 2}));
  EXPECT_EQ(rows[1].at("answer_lengths"), (Numbers{2, 2, 0})) << "a pair beside it";
  EXPECT_EQ(rows[1].at("positions"), (Numbers{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3}));
  EXPECT_EQ(batch.at("margins")[1].item<float>(), 0.5f);
  options.rules.answers = 2;
  EXPECT_THAT(refusal(text, options),
              AllOf(HasSubstr("bad.jsonl:1: a ranking must have at most alignment.answers = 2"), HasSubstr("got 3")));
  options.rules.samples = ChatSamples::Pairs;
  EXPECT_THAT(refusal(text, options), HasSubstr("this method reads pairs (chosen and rejected): got a ranking"));
}

TEST_F(ChatStreamTest, GivesRatedAnswersThoseOfTheirNeighbours) {
  std::string text;
  for (int i = 0; i < 4; ++i)
    text += nlohmann::json{{"prompt", std::string(i + 1, 'p')},
                           {"completion", std::string(1, static_cast<char>('a' + i))},
                           {"label", i % 2 == 0}}
                .dump() +
            "\n";
  const std::vector<StreamSource> rated = {StreamSource::open("rated", folder.write("rated.jsonl", text), 1)};
  options.rules.samples = ChatSamples::Rated;
  options.records.shuffle = false;
  options.mismatched = true;
  const auto batches = [&](int rank, int ranks) {
    ChatStreamOptions o = options;
    o.rank = rank, o.ranks = ranks;
    return rows_of(stream(rated, o)->next({}));
  };
  const std::vector<Row> whole = batches(0, 1);
  const auto shown = [](const Row& row) {
    std::vector<std::string> texts;
    for (const Numbers& document : documents_of(row))
      texts.emplace_back(document.begin(), document.begin() + static_cast<std::ptrdiff_t>(document.size() / 2) - 1);
    return texts;
  };
  EXPECT_THAT(shown(whole[0]), ElementsAre("pa", "pd"));  // the first row has the answer of the last
  EXPECT_THAT(shown(whole[1]), ElementsAre("ppb", "ppa"));
  EXPECT_THAT(shown(whole[3]), ElementsAre("ppppd", "ppppc"));
  EXPECT_THAT(whole[0].at("desirable"), ElementsAre(1));
  EXPECT_THAT(whole[1].at("desirable"), ElementsAre(0));
  EXPECT_EQ(batches(1, 2), std::vector<Row>(whole.begin() + 2, whole.end()));
  options.rules.samples = ChatSamples::Answers;
  EXPECT_THAT(test::thrown_message([&] { stream(one(), options); }), HasSubstr("only rated answers"));
}

TEST_F(ChatStreamTest, RefusesPositionsOfOtherData) {
  const auto state = [&](const ChatStreamOptions& o, Answers answers = Answers::All) {
    Batches batches(std::make_unique<ChatStream>(one(), encoder(answers), o), false);
    return batches.state();
  };
  const auto difference = [&](const nlohmann::json& stored) {
    Batches batches(stream(one(), options), false);
    return test::thrown_message([&] { batches.restore(stored); });
  };
  EXPECT_EQ(difference(state(options)), "");
  ChatStreamOptions other = options;
  other.row_multiple = 64, other.threads = 2;  // another layout
  EXPECT_EQ(difference(state(other)), "");
  other.rules.sequence = 48;
  EXPECT_THAT(difference(state(other)), HasSubstr("sequence was 48"));
  other = options, other.packing = false;
  EXPECT_THAT(difference(state(other)), HasSubstr("packing was 0"));
  other = options, other.rules.too_long = TooLong::Drop;
  EXPECT_THAT(difference(state(other)), HasSubstr("too_long was drop"));
  EXPECT_THAT(difference(state(options, Answers::Last)), HasSubstr("answers was last"));
  nlohmann::json damaged = state(options);
  damaged["taken"] = 1000;
  const auto reader = stream(one(), options);
  reader->seek(damaged);
  EXPECT_THAT(test::thrown_message([&] { reader->next({}); }), HasSubstr("row 1000 of a window"));
}

TEST_F(ChatStreamTest, HoldsOutRowsInMemory) {
  options.records.held_out = 0.3;
  std::set<Numbers> held_out;
  for (const bool packing : {true, false}) {
    options.packing = packing;
    std::vector<std::string> notices;
    const auto samples = read_held_out_chats(both(), *encoder(), options, 1000, notices);
    EXPECT_THAT(notices, IsEmpty());
    EXPECT_GT(samples->count(), 3);
    Batches batches(samples, {.batch_size = samples->count(), .shuffle = false});
    std::set<Numbers> found;
    for (const Row& row : rows_of(batches.next())) {
      EXPECT_EQ(row.at("ids").size() == 96, packing);
      for (const Numbers& document : documents_of(row)) found.insert(document);
    }
    EXPECT_GT(found.size(), 8u);
    EXPECT_TRUE(held_out.empty() || held_out == found);
    held_out = found;
    ChatStreamOptions training = options;
    training.records.part = Part::Training;
    for (const Numbers& document : documents(*stream(both(), training), 40)) EXPECT_FALSE(found.contains(document));
  }
  std::vector<std::string> notices;
  EXPECT_EQ(read_held_out_chats(one(), *encoder(), options, 3, notices)->count(), 3);
  options.records.held_out = 0;
  EXPECT_EQ(read_held_out_chats(one(), *encoder(), options, 3, notices)->count(), 0);
}

TEST_F(ChatStreamTest, ChecksTheFirstRecordsOfEachSource) {
  std::vector<std::string> notices;
  EXPECT_THAT(check_first_chats(one(), *encoder(), options, notices), ElementsAre(made::kTurnEnd));
  EXPECT_THAT(check_first_chats(both(), *encoder(), options, notices), ElementsAre(made::kDocumentEnd, made::kTurnEnd));
  EXPECT_THAT(notices, IsEmpty());
  const ChatEncoder unaware(made::chat_tokenizer(), text::ChatTemplate(made::kChatMl));
  EXPECT_THAT(check_first_chats(one(), unaware, options, notices), ElementsAre(made::kTurnEnd));
  EXPECT_THAT(notices, IsEmpty());
  const ChatEncoder endless(made::chat_tokenizer(),
                            text::ChatTemplate("{% for m in messages %}{{ m.content }}\n{% endfor %}"));
  check_first_chats(one(), endless, options, notices);
  EXPECT_THAT(notices, ElementsAre(AllOf(HasSubstr("writes no end token"), HasSubstr("so <|endoftext|> ("))));
  folder.write("chats.jsonl", "[{\"role\": \"bot\", \"content\": \"x\"}]\n" + chat("a", "b"));
  EXPECT_THAT(test::thrown_message([&] { check_first_chats(one(), *encoder(), options, notices); }),
              AllOf(HasSubstr("chats.jsonl:1: message 1: roles"), HasSubstr("data.on_error = \"skip\"")));
  options.records.on_error = OnError::Skip;
  EXPECT_THAT(check_first_chats(one(), *encoder(), options, notices), ElementsAre(made::kTurnEnd));
  const ChatEncoder plain(made::chat_tokenizer(), std::nullopt);
  options.records.on_error = OnError::Refuse;
  folder.write("chats.jsonl", chat("a", "b"));
  EXPECT_THAT(test::thrown_message([&] { check_first_chats(one(), plain, options, notices); }),
              HasSubstr("data.chat_template"));
}

TEST_F(ChatStreamTest, ReportsWhatIsLostOnceAlsoAfterAResume) {
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += chat("q" + std::to_string(i), std::string(i % 3 == 0 ? 100 : 10, 'a'));
  const std::vector<StreamSource> source = {StreamSource::open("long", folder.write("long.jsonl", lines), 1)};
  options.batch_size = 1;
  for (const bool packing : {true, false}) {
    options.packing = packing;
    const auto whole = stream(source, options);
    std::vector<std::string> want;
    const auto add = [](BatchReader& reader, std::vector<std::string>& notices) {
      reader.next({});
      for (const std::string& notice : reader.take_notices()) notices.push_back(notice);
    };
    for (int i = 0; i < 25; ++i) add(*whole, want);
    EXPECT_THAT(want, Contains(HasSubstr("(1 so far)")));
    EXPECT_THAT(want, Contains(HasSubstr("(10 so far)")));
    for (int stop = 1; stop < 24; stop += 5) {
      std::vector<std::string> got;
      const auto first = stream(source, options), second = stream(source, options);
      for (int i = 0; i < stop; ++i) add(*first, got);
      second->seek(first->position());
      for (int i = stop; i < 25; ++i) add(*second, got);
      EXPECT_EQ(got, want) << stop << ", packing " << packing;
      EXPECT_EQ(second->position(), whole->position());
    }
  }
}

}  // namespace
}  // namespace colossal::data::chat_stream_test
