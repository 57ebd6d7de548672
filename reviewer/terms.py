"""The words of a finding, made comparable across wordings and across English and Chinese."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|\d+(?:\.\d+)?|[㐀-䶿一-鿿]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_STOP_WORDS = """
a an the and or but if then else of to in on at by for with from into is are was were be been being it its this that
these those as not no can could may might will would should when which while where who whom whose there their they
them than so such only also both each any all more most other some same own too very just have has had do does did
doing using use used uses via per
"""

# What reviews talk about, in both languages: a Chinese finding then shares words with an English one.
_TRANSLATIONS = """
竞态 race|竞争条件 race condition|并发 concurrent|线程 thread|协程 coroutine|死锁 deadlock|加锁 lock|持锁 lock|锁 lock
互斥 mutex|临界区 critical section|原子 atomic|同步 synchronise|异步 asynchronous|内存序 memory order
泄漏 leak|泄露 leak|关闭 close|释放 free|内存 memory|句柄 handle|描述符 descriptor|资源 resource|析构 destructor
构造 constructor|指针 pointer|地址 address|悬空 dangling|未初始化 uninitialised|越界 bounds|溢出 overflow
截断 truncate|精度 precision|半精度 half precision|取整 round|累加 accumulate|张量 tensor|序列 sequence|批次 batch
核函数 kernel|掩码 mask|对齐 align|步长 stride|偏移 offset|索引 index|下标 index|差一 off one|边界 boundary
循环 loop|递归 recursion|除零 division zero|空指针 null pointer|空值 null|为空 null empty|非空 not null|默认 default
负数 negative|正数 positive|校验 validate|验证 validate|检查 check|判断 condition|条件 condition|比较 compare
参数 parameter|返回 return|异常 exception|抛出 raise throw|捕获 catch|吞掉 swallow|错误 error|失败 fail|重试 retry
超时 timeout|崩溃 crash panic|网络 network|请求 request|响应 response|状态码 status|连接 connection|重定向 redirect
注入 injection|转义 escape|拼接 concatenate interpolate|权限 permission|鉴权 authorisation|认证 authentication
密码 password|令牌 token|密钥 secret|明文 plaintext|加密 encrypt|攻击 attack|用户 user|缓存 cache|淘汰 evict
过期 expire|容量 capacity|上限 limit|无限 unbounded|增长 grow|队列 queue|缓冲 buffer|元素 element|覆盖 overwrite
消费者 consumer|生产者 producer|数据库 database|事务 transaction|回滚 rollback|回退 rollback|迁移 migration
锁表 lock table|阻塞 block|查询 query|写入 write|读取 read|字段 column|列 column|表 table
性能 performance|延迟 latency|开销 cost|复杂度 complexity|重复 duplicate|冗余 redundant|未使用 unused|死代码 dead code
命名 name|拼写 typo|注释 comment|文档 documentation|日志 log|测试 test|兼容 compatible|废弃 deprecated|配置 config
单位 unit|时区 timezone|编码 encoding|路径 path|文件 file|目录 directory|版本 version|依赖 dependency|接口 interface
签名 signature|类型 type|整数 integer|浮点 float|删除 remove delete|缺少 missing|没有 missing|遗漏 missing
不一致 inconsistent|顺序 order
"""

_STOP = frozenset(_STOP_WORDS.split())
_GLOSSARY = {
    chinese: english
    for line in _TRANSLATIONS.split("\n")
    for chinese, _, english in (entry.partition(" ") for entry in line.split("|"))
    if chinese
}
_LONGEST = max(map(len, _GLOSSARY))


def split_terms(text: str) -> Iterator[str]:
    """The terms of `text` in order: stems of words and of the parts of identifiers, without stop words.

    Chinese terms of the glossary come out as their English stems, other Chinese text as pairs of characters.
    """
    for token in _TOKEN.findall(text):
        if token[0] >= "㐀":
            yield from _chinese(token)
            continue
        for part in _PART.findall(token):
            word = part.lower()
            if word not in _STOP:
                yield _stem(word)


def _chinese(run: str) -> Iterator[str]:
    position = start = 0
    while position < len(run):
        for size in range(min(_LONGEST, len(run) - position), 0, -1):
            english = _GLOSSARY.get(run[position : position + size])
            if english:
                yield from _pairs(run[start:position])
                yield from map(_stem, english.split())
                position += size
                start = position
                break
        else:
            position += 1
    yield from _pairs(run[start:])


def _pairs(run: str) -> Iterator[str]:
    return (run[i : i + 2] for i in range(len(run) - 1))


@lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    return _stemmer()(word)


@cache
def _stemmer() -> Callable[[str], str]:
    import snowballstemmer  # type: ignore[import-untyped]

    stem: Callable[[str], str] = snowballstemmer.stemmer("english").stemWord
    return stem
