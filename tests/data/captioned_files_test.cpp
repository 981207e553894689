// Pictures with captions as files in folders, in lists and as drawn shapes: what is read, refused and skipped.
#include <gmock/gmock.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/data/pictures/captioned.h"
#include "colossal/data/pictures/picture_header.h"
#include "colossal/data/pictures/shapes.h"
#include "data/tiny_pictures.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::captioned_files_test {
namespace {

using test_pictures::png;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

const CaptionedOptions kSkip{.on_error = OnError::Skip};

/// Returns `name WxH repeats: caption` of each picture.
std::vector<std::string> read(const std::string& path, const CaptionedOptions& options = {}) {
  const auto pictures = open_captioned(path, options);
  std::vector<std::string> all;
  for (int64_t i = 0; i < pictures->count(); ++i) {
    const CaptionedPicture& p = pictures->at(i);
    all.push_back(concat(p.name, " ", p.width, "x", p.height, " ", p.repeats, ": ", p.caption));
  }
  return all;
}

std::string refusal(const std::string& path, const CaptionedOptions& options = {}) {
  return test::thrown_message([&] { open_captioned(path, options); });
}

class CaptionedFiles : public testing::Test {
 protected:
  test::TemporaryFolder folder;
};

TEST_F(CaptionedFiles, HaveTextsBesideThem) {
  folder.write("b/deep/x.y.png", png(3, 2));
  folder.write("b/deep/x.y.caption", "\xef\xbb\xbf a dog,\nasleep \n");
  folder.write("a.jpg", test_pictures::turned_jpeg());
  folder.write("a.txt", "a cat");
  folder.write("c.PNG", png(5, 4));
  folder.write("c.TXT",
               "a b\xc3\xa9"
               "e\n");
  folder.write("d.png", png(5, 4));
  folder.write("d.txt", "same\n");
  folder.write("d.caption", "same");
  EXPECT_THAT(read(folder.path()), ElementsAre("a.jpg 20x30 1: a cat", "b/deep/x.y.png 3x2 1: a dog,\nasleep",
                                               "c.PNG 5x4 1: a b\xc3\xa9"
                                               "e",
                                               "d.png 5x4 1: same"));
  const auto pictures = open_captioned(folder.path());
  EXPECT_EQ(pictures->bytes(1), png(3, 2));
  EXPECT_THAT(pictures->take_notices(), testing::IsEmpty());
  std::filesystem::remove(folder / "a.jpg");
  EXPECT_THAT(test::thrown_message([&] { pictures->bytes(0); }), HasSubstr("a.jpg"));
}

TEST_F(CaptionedFiles, CountWhatIsNotRead) {
  folder.write("a.png", png(3, 2));
  folder.write("a.txt", "a");
  folder.write("README.txt", "of the pictures");
  folder.write("a.pkl", "pickle");
  folder.write("b.pt", "pickle");
  folder.write(".b.png", png(3, 2));
  folder.write(".git/c.png", png(3, 2));
  const auto pictures = open_captioned(folder.path());
  EXPECT_EQ(pictures->count(), 1);
  EXPECT_THAT(pictures->take_notices(), ElementsAre("in " + folder.path() + " 1 texts have no picture of their name",
                                                    "in " + folder.path() + " 2 files are not read: 1 .pkl, 1 .pt"));
  EXPECT_THAT(pictures->take_notices(), testing::IsEmpty());
}

TEST_F(CaptionedFiles, NeedCaptions) {
  folder.write("a.png", png(3, 2));
  folder.write("b.png", png(3, 2));
  folder.write("b.txt", "b");
  EXPECT_THAT(refusal(folder.path()), AllOf(HasSubstr(folder / "a.png has no caption"),
                                            HasSubstr("; to train without it set data.on_error = \"skip\"")));
  folder.write("a.txt", " \n");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("a.png has no caption"));
  EXPECT_THAT(read(folder.path(), kSkip), ElementsAre("b.png 3x2 1: b"));
  EXPECT_THAT(open_captioned(folder.path(), kSkip)->take_notices(),
              Contains(AllOf(HasSubstr("skipped: "), HasSubstr("a.png has no caption"), HasSubstr("(1 so far)"))));
  folder.write("a.txt", "one");
  folder.write("a.caption", "other");
  EXPECT_THAT(refusal(folder.path()), AllOf(HasSubstr("two captions that differ"), HasSubstr("a.caption and ")));
  folder.write("a.caption", "\xff");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("a.caption: the caption is not UTF-8"));
  folder.write("a.caption", std::string((1 << 20) + 1, 'a'));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("a.caption: a caption of more than 1048576 bytes"));
}

TEST_F(CaptionedFiles, NeedHeadersThatAreWhole) {
  folder.write("a.png", png(3, 2).substr(0, 40));
  folder.write("a.txt", "a");
  folder.write("b.jpg", "no picture");
  folder.write("b.txt", "b");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("a.png is cut short"));
  EXPECT_THAT(refusal(folder.path(), kSkip),
              AllOf(HasSubstr("no pictures with captions in " + folder.path()), HasSubstr("a.png is cut short")));
  folder.write("a.png", png(3, 2));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("b.jpg is neither a PNG nor a JPEG nor a WebP file"));
  EXPECT_THAT(read(folder.path(), kSkip), ElementsAre("a.png 3x2 1: a"));
}

TEST_F(CaptionedFiles, RepeatAsKohyasFoldersSay) {
  folder.write("10_a cat/x.png", png(3, 2));
  folder.write("10_a cat/y.png", png(3, 2));
  folder.write("10_a cat/y.txt", "a cat, asleep");
  folder.write("1_class/z.png", png(4, 2));
  folder.write("plain/2_inner/w.png", png(4, 2));
  folder.write("plain/2_inner/w.txt", "w");
  EXPECT_THAT(read(folder.path()), ElementsAre("10_a cat/x.png 3x2 10: a cat", "10_a cat/y.png 3x2 10: a cat, asleep",
                                               "1_class/z.png 4x2 1: class", "plain/2_inner/w.png 4x2 1: w"));
  EXPECT_THAT(open_captioned(folder.path())->take_notices(),
              Contains(folder / "10_a cat: an epoch shows each of 2 pictures 10 times"));
}

TEST_F(CaptionedFiles, StandInAListOfLines) {
  folder.write("train/a.png", png(3, 2));
  folder.write("b.png", png(4, 2));
  folder.write("c.png", png(4, 2));
  folder.write("metadata.jsonl",
               "{\"file_name\": \"train/./a.png\", \"text\": \" a \", \"n\": 1}\n\n{\"file_name\": \"b.png\", "
               "\"caption\": \"b\"}");
  const std::vector<std::string> want = {"train/a.png 3x2 1: a", "b.png 4x2 1: b"};
  EXPECT_EQ(read(folder.path()), want);
  EXPECT_EQ(read(folder / "metadata.jsonl"), want);
  EXPECT_EQ(open_captioned(folder.path())->bytes(0), png(3, 2));
  EXPECT_THAT(open_captioned(folder.path())->take_notices(), ElementsAre(HasSubstr(" 1 pictures are not in ")));
  folder.write("metadata.csv", "file_name,text\n");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("must have one list of pictures: got metadata.jsonl and metadata.csv"));
}

TEST_F(CaptionedFiles, StandInATableOfCommas) {
  folder.write("a, b.png", png(3, 2));
  folder.write("c.png", png(4, 2));
  folder.write("metadata.csv", "text,file_name,note\r\n\"a \"\"cat\"\",\nasleep\",\"a, b.png\",\r\nc,c.png,\"x\"\r\n");
  const std::vector<std::string> want = {"a, b.png 3x2 1: a \"cat\",\nasleep", "c.png 4x2 1: c"};
  EXPECT_EQ(read(folder.path()), want);
  EXPECT_EQ(read(folder.path(), {.on_error = OnError::Skip, .text_column = "note"}),
            (std::vector<std::string>{"c.png 4x2 1: x"}));
  EXPECT_THAT(refusal(folder.path(), {.text_column = "title"}),
              AllOf(HasSubstr("metadata.csv:2: no caption: it has no title"), HasSubstr("set data.text_columns")));
  folder.write("metadata.csv", "name,text\n");
  EXPECT_THAT(refusal(folder.path(), kSkip), HasSubstr("metadata.csv:1: the first line must name the columns"));
  folder.write("metadata.csv", "file_name,text\nc.png\nc.png,\"a\"b\nc.png,c\n");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("metadata.csv:2: 2 fields are needed: got 1"));
  EXPECT_THAT(read(folder.path(), kSkip), ElementsAre("c.png 4x2 1: c"));
  const auto notices = open_captioned(folder.path(), kSkip)->take_notices();
  EXPECT_THAT(notices, Contains(HasSubstr("metadata.csv:3: text follows the quote")));
}

TEST_F(CaptionedFiles, HaveControlPicturesThatAListNames) {
  folder.write("a.png", png(3, 2));
  folder.write("b.png", png(4, 2));
  folder.write("b.control.png", png(6, 2));
  folder.write("edges/one.png", png(5, 2));
  folder.write("metadata.csv", "file_name,text,conditioning_image_file_name\na.png,a,edges/./one.png\nb.png,b,\n");
  const CaptionedOptions options{.has_controls = true};
  const auto pictures = open_captioned(folder.path(), options);
  ASSERT_EQ(pictures->count(), 2);
  EXPECT_EQ(pictures->control_name(0), folder / "edges/one.png");
  EXPECT_EQ(pictures->control_bytes(0), png(5, 2));
  EXPECT_EQ(pictures->control_bytes(1), png(6, 2)) << "beside the picture";
  EXPECT_THAT(pictures->take_notices(), testing::IsEmpty());
  folder.write("metadata.csv", "file_name,text,conditioning_image_file_name\na.png,a,../one.png\nb.png,b,lost.png\n");
  EXPECT_THAT(refusal(folder.path(), options),
              HasSubstr("metadata.csv:2: conditioning_image_file_name must be a path within the folder"));
  const CaptionedOptions skipping{.on_error = OnError::Skip, .has_controls = true};
  const auto left = open_captioned(folder.path(), skipping);
  ASSERT_EQ(left->count(), 1);
  EXPECT_FALSE(left->has_control(0));
}

TEST_F(CaptionedFiles, MayBeControlPicturesOfOthers) {
  for (const char* name : {"a.png", "b.png"}) folder.write(name, png(3, 2));
  const std::string head = "file_name,text,conditioning_image_file_name\n", of_a = "a.png,a,b.png\n",
                    of_b = "b.png,b,b.png\n";
  for (const std::string& lines : {of_a + of_b, of_b + of_a}) {
    folder.write("metadata.csv", head + lines);
    EXPECT_EQ(open_captioned(folder.path(), {.has_controls = true})->count(), 2) << lines;
  }
  folder.write("metadata.csv", head + of_a + of_a);
  EXPECT_THAT(refusal(folder.path(), {.has_controls = true}), HasSubstr("a.png is listed twice"));
}

TEST_F(CaptionedFiles, NamesLinesOfAListThatAreWrong) {
  folder.write("pictures/a.png", png(3, 2));
  folder.write("outside.png", png(3, 2));
  folder.write("other/b.png", png(3, 2));
  std::filesystem::create_directory_symlink(folder / "other", folder / "pictures/linked");
  const std::string good = "{\"file_name\": \"a.png\", \"text\": \"a\"}\n";
  for (const auto& [line, why] : std::vector<std::pair<std::string, std::string>>{
           {R"({"file_name": "../outside.png", "text": "a"})",
            "file_name must be a path within the folder of the list"},
           {R"({"file_name": "x/../../outside.png", "text": "a"})", "file_name must be a path within"},
           {"{\"file_name\": \"" + folder / "outside.png" + "\", \"text\": \"a\"}", "file_name must be a path within"},
           {R"({"file_name": "linked/b.png", "text": "a"})",
            "must not go through a link to a folder: got linked/b.png"},
           {R"({"file_name": "./a.png", "text": "again"})", "a.png is listed twice"},
           {R"({"file_name": "none.png", "text": "a"})", "cannot open " + folder / "pictures/none.png"},
           {R"({"file_name": 3, "text": "a"})", "no file_name"},
           {R"({"text": "a"})", "no file_name"},
           {R"({"file_name": "linked.png"})", "no caption: it has no text or caption"},
           {R"({"file_name": "linked.png", "text": null})", "the caption must be text: got null"},
           {R"({"file_name": "linked.png", "text": " "})", "the caption is empty"},
           {R"({"file_name": )", "metadata.jsonl:2"}}) {
    folder.write("pictures/metadata.jsonl", good + line + "\n");
    EXPECT_THAT(refusal(folder / "pictures"), AllOf(HasSubstr(why), HasSubstr("data.on_error = \"skip\""))) << line;
    EXPECT_THAT(read(folder / "pictures", kSkip), ElementsAre("a.png 3x2 1: a")) << line;
    EXPECT_THAT(open_captioned(folder / "pictures", kSkip)->take_notices(), Contains(HasSubstr(why))) << line;
  }
}

TEST_F(CaptionedFiles, FollowLinksToFilesOnly) {
  folder.write("other/b.png", png(4, 2));
  folder.write("other/b.txt", "b");
  folder.write("pictures/a.txt", "a");
  std::filesystem::create_symlink(folder / "other/b.png", folder / "pictures/a.png");
  std::filesystem::create_directory_symlink(folder / "other", folder / "pictures/linked");
  EXPECT_THAT(read(folder / "pictures"), ElementsAre("a.png 4x2 1: a"));
}

// Headers alone are read: the pixels of this picture would be found in the peak of the memory.
TEST_F(CaptionedFiles, StayOnTheDisk) {
  constexpr int64_t kPixels = 200 << 20;
  std::string start = png(3, 2);
  const size_t chunk = start.find("IDAT") - 4;
  start.resize(chunk);
  start += std::string("\x0c\x80\0\0", 4) + "IDAT";  // claims 200 MiB
  const std::string path = folder.write("a.png", start);
  folder.write("a.txt", "a");
  std::filesystem::resize_file(path, chunk + 8 + kPixels + 4);  // without disk space
  std::ofstream(path, std::ios::binary | std::ios::app) << std::string("\0\0\0\0IEND\xae\x42\x60\x82", 12);
  const auto peak = [] {
    const std::string status = test::read_all("/proc/self/status");
    return std::stoll(status.substr(status.find("VmHWM:") + 6)) * 1024;
  };
  const int64_t before = peak();
  EXPECT_THAT(read(folder.path()), ElementsAre("a.png 3x2 1: a"));
  EXPECT_LT(peak() - before, 20 << 20);
  std::filesystem::resize_file(path, (int64_t{256} << 20) + 1);
  EXPECT_THAT(refusal(folder.path()), HasSubstr("a.png has more than 268435456 bytes"));
}

TEST_F(CaptionedFiles, ShowThemselves) {
  EXPECT_THAT(refusal(folder / "none"), HasSubstr("no such file or folder: "));
  folder.write("empty/a.gif", "x");
  EXPECT_THAT(refusal(folder / "empty"), AllOf(HasSubstr("no pictures with captions in "), HasSubstr("1 .gif")));
  EXPECT_THAT(refusal(folder / "empty/a.gif"), HasSubstr("must be a folder, a .tar or .parquet file"));
  EXPECT_FALSE(is_captioned(folder / "none"));
  EXPECT_FALSE(is_captioned(folder / "empty"));
  folder.write("classes/cat/a.png", png(3, 2));
  folder.write("classes/README.txt", "text");
  EXPECT_FALSE(is_captioned(folder / "classes"));
  folder.write("classes/cat/a.txt", "a");
  EXPECT_TRUE(is_captioned(folder / "classes"));
  folder.write("kohya/3_cat/a.png", png(3, 2));
  folder.write("tars/a.tar", "");
  folder.write("parquet/a.parquet", "");
  folder.write("list/metadata.csv", "");
  for (const char* name : {"kohya", "tars", "tars/a.tar", "parquet", "list", "list/metadata.csv"})
    EXPECT_TRUE(is_captioned(folder / name)) << name;
  EXPECT_TRUE(is_captioned(folder / "tars/{0..3}.tar"));
  folder.write("both/a.tar", "");
  folder.write("both/a.parquet", "");
  EXPECT_THAT(refusal(folder / "both"), HasSubstr("must have pictures in one form: got 1 .tar and 1 .parquet"));
}

TEST(CaptionedShapes, HaveOneSize) {
  const auto pictures = open_captioned("builtin-shapes:12", {.width = 24, .height = 16});
  ASSERT_EQ(pictures->count(), 12);
  EXPECT_EQ(pictures->at(11).caption, shape_caption(1));
  EXPECT_EQ(std::pair(pictures->at(11).width, pictures->at(11).height), std::pair(int64_t{24}, int64_t{16}));
  const Picture picture = decode_picture(pictures->bytes(11), "a");
  EXPECT_EQ(std::pair(picture.width, picture.height), std::pair(int64_t{24}, int64_t{16}));
  EXPECT_EQ(open_captioned("builtin-shapes:12", {.width = 24, .height = 16})->bytes(11), pictures->bytes(11));
  EXPECT_NE(open_captioned("builtin-shapes:12", {.width = 24, .height = 16, .seed = 1})->bytes(11),
            pictures->bytes(11));
  EXPECT_NE(pictures->bytes(1), pictures->bytes(11)) << "one shape in two pictures";
  EXPECT_TRUE(is_captioned("builtin-shapes"));
}

}  // namespace
}  // namespace colossal::data::captioned_files_test
