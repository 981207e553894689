#include "colossal/formats/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thrown_message.h"
#include "support/torch_bytes.h"

namespace colossal::formats::pickle_test {
namespace {

using Kind = PickleValue::Kind;
using testing::HasSubstr;

Pickle read(const std::string& bytes) {
  std::string_view rest = bytes;
  return read_pickle(rest, "x.pt");
}
std::string refusal(const std::string& bytes) {
  return test::thrown_message([&] { read(bytes); });
}

/// Writes a value as Python would. A value that holds itself ends it.
std::string shown(const Pickle& pickle, const PickleValue& value, int depth = 0) {
  if (depth > 9) return "...";
  switch (value.kind) {
    case Kind::None:
      return "None";
    case Kind::Bool:
      return value.integer ? "True" : "False";
    case Kind::Integer:
      return std::to_string(value.integer);
    case Kind::BigInteger:
      return "big";
    case Kind::Real:
      return std::to_string(value.real);
    case Kind::Text:
      return "'" + value.text + "'";
    case Kind::Bytes:
      return "b'" + value.text + "'";
    case Kind::Function:
      return pickle.function_of(value);
    default:
      break;
  }
  static constexpr const char* kOpen[] = {"[", "(", "set(", "{", "", "call(", "external("};
  std::string all = kOpen[static_cast<int>(value.kind) - static_cast<int>(Kind::List)];
  for (size_t i = 0; i < value.items.size(); ++i)
    all += (i ? ", " : "") + shown(pickle, pickle.item(value, i), depth + 1);
  return all + ")";
}
std::string shown(const std::string& bytes) {
  const Pickle pickle = read(bytes);
  return shown(pickle, pickle.root());
}

TEST(Pickle, BuildsNumbersTextsAndContainers) {
  // pickle.dumps([None, True, False, 5, 300, 70000, -3, 1.5, "a", b"b"], protocol)
  const std::string list = "](N\x88\x89K\x05M" + test::little(300, 2) + "J" + test::little(70000, 4) +
                           "J\xfd\xff\xff\xffG\x3f\xf8" + std::string(6, '\0') + "X" + test::little(1, 4) +
                           "aC\x01"
                           "be.";
  for (const std::string& start : {std::string("\x80\x02"), "\x80\x04\x95" + test::little(list.size(), 8)})
    EXPECT_EQ(shown(start + list), "[None, True, False, 5, 300, 70000, -3, 1.500000, 'a', b'b')");
  EXPECT_EQ(shown("\x80\x02\x8a\x02\xff\x7f."), "32767");
  EXPECT_EQ(shown("\x80\x02\x8a\x01\xff."), "-1");
  EXPECT_EQ(shown("\x80\x02\x8a\x09.........."), "big");
  EXPECT_EQ(shown("(I01\nI7\nL-8L\nl."), "[True, 7, -8)");
  EXPECT_EQ(shown(test::pickle_of(test::dict_piece({{"a", "K\x01"}, {"b", ")"}}))), "{'a', 1, 'b', ())");
  EXPECT_EQ(shown("\x80\x04(K\x01K\x02\x91."), "set(1, 2)");
}

TEST(Pickle, KeepsCallsAsValues) {
  EXPECT_EQ(shown(test::pickle_of(test::call_piece(test::function_piece("os", "system"), {test::text_piece("ls")}))),
            "call(os.system, ('ls'))");
  EXPECT_EQ(shown("\x80\x04\x8c\x02os\x8c\x06system\x93)R."), "call(os.system, ())");
  EXPECT_EQ(shown("\x80\x02"
                  "cm\nC\n)\x81}b."),
            "call(m.C, ())");  // an object with attributes
  EXPECT_EQ(shown("\x80\x02"
                  "cm\nC\n)RK\x01"
                  "a."),
            "call(m.C, ())");
  EXPECT_EQ(shown(test::pickle_of(test::storage_piece("FloatStorage", "0", 3))),
            "external(('storage', torch.FloatStorage, '0', 'cpu', 3))");
}

TEST(Pickle, ReadsOrderedDicts) {
  EXPECT_EQ(shown(test::pickle_of(test::ordered_piece({{"a", "K\x01"}}) + "}b")), "{'a', 1)");
  // Python 2 writes a list of pairs
  const std::string pair = "](" + test::text_piece("a") +
                           "K\x01"
                           "e";
  EXPECT_EQ(shown("\x80\x02"
                  "ccollections\nOrderedDict\n](" +
                  pair + "e\x85R."),
            "{'a', 1)");
}

TEST(Pickle, FindsTheLastOfEqualKeys) {
  const Pickle pickle = read(test::pickle_of(test::dict_piece({{"a", "K\x01"}, {"b", "K\x02"}, {"a", "K\x03"}})));
  EXPECT_EQ(pickle.find(pickle.root(), "a")->integer, 3);
  EXPECT_EQ(pickle.find(pickle.root(), "c"), nullptr);
}

TEST(Pickle, SharesValuesThroughTheMemo) {
  const Pickle pickle = read("\x80\x02]q\x05(h\x05j" + test::little(5, 4) + "e.");  // a list that holds itself twice
  ASSERT_EQ(pickle.root().items.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(&pickle.item(pickle.root(), i), &pickle.root());
}

TEST(Pickle, NestsWithoutRecursion) {
  const size_t depth = 200'000;
  const Pickle pickle = read("\x80\x02" + std::string(depth, ']') + std::string(depth - 1, 'a') + ".");
  EXPECT_EQ(pickle.values().size(), depth);
  EXPECT_EQ(pickle.root().items.size(), 1u);
}

TEST(Pickle, RefusesDamage) {
  EXPECT_THAT(refusal(""), HasSubstr("x.pt: the pickle is damaged at byte 0: it is cut short"));
  EXPECT_THAT(refusal("\x80\x02."), HasSubstr("byte 3: a value is missing"));
  EXPECT_THAT(refusal("\x80\x09N."), HasSubstr("a protocol above 5"));
  EXPECT_THAT(refusal("\x80\x02h\x07."), HasSubstr("a memo that is not there"));
  EXPECT_THAT(refusal("\x80\x02Ne."), HasSubstr("a mark is missing"));
  EXPECT_THAT(refusal("\x80\x02](K\x01."), HasSubstr("a mark without an end"));
  EXPECT_THAT(refusal("\x80\x02(\x85."), HasSubstr("a value is missing"));
  EXPECT_THAT(refusal("\x80\x02}(K\x01u."), HasSubstr("a key without a value"));
  EXPECT_THAT(refusal("\x80\x02K\x01K\x01"
                      "a."),
              HasSubstr("no container of them"));
  EXPECT_THAT(refusal("\x80\x02NNR."), HasSubstr("arguments are no tuple"));
  EXPECT_THAT(refusal("\x80\x04K\x01K\x02\x93."), HasSubstr("name is no text"));
  EXPECT_THAT(refusal("\x80\x02X\xff\xff\xff\x7f"
                      "abc."),
              HasSubstr("it is cut short"));
  EXPECT_THAT(refusal("\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff"
                      "abc."),
              HasSubstr("it is cut short"));
  EXPECT_THAT(refusal("Vabc\n."), HasSubstr("an opcode that is not read, 86"));
  EXPECT_THAT(refusal("I7x\n."), HasSubstr("other characters than digits"));
}

TEST(Pickle, BoundsValuesThatAFileRepeats) {
  // an OrderedDict of 2,000 pairs, made 6,000 times by a few bytes each
  std::string bytes =
      "\x80\x02"
      "ccollections\nOrderedDict\nq\x01](";
  for (int i = 0; i < 2000; ++i) bytes += "K\x01K\x02\x86";
  bytes += "e\x85q\x02";
  for (int i = 0; i < 6000; ++i) bytes += "h\x01h\x02R0";
  EXPECT_THAT(refusal(bytes + "."), HasSubstr("too many values"));
}

}  // namespace
}  // namespace colossal::formats::pickle_test
