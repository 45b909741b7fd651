# SPDX-License-Identifier: MIT
# Shows Doxygen README and the guides (sed -E). Examples have pages of their own there. Doxygen does not know the parts of
# a page by the names that these links use, and has no page for tests and the files of the project: those become text.
s#\]\((\.\./|examples/)([a-z_]+)\.cpp\)#](\2_8cpp-example.html)#g
s/\[([^][]*)\]\(#[^)]*\)/\1/g
s/(\]\([^)# ]*\.md)#[^)]*\)/\1)/g
s#\[([^][]*)\]\(((\.\./\.\./)?(tests|include)|\.github)/[^)]*\)#\1#g
# Between single backticks an apostrophe would end the code.
/'/s/`([^`]+)`/``\1``/g
# Doxygen does not see two asterisks beside a backtick.
s#\*\*([^*]+)\*\*#<b>\1</b>#g
